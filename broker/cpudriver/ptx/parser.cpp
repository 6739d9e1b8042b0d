// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/ptx/parser.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "broker/cpudriver/ptx/unsupported.hpp"

namespace mpsshim::ptx {

namespace {

constexpr std::uint32_t kNewestVersion = 99;  // 9.9: as Text::version counts

}  // namespace

void Parser::fail_at(std::uint32_t line, const std::string& text) const { throw LoadError{ErrorCode::invalid_ptx, line, text}; }

void Parser::fail(const std::string& text) const {
  const Token& token = lexer_.peek();
  fail_at(token.line, text + (token.kind == TokenKind::end ? " at the end of the text" : " at '" + std::string(token.text) + "'"));
}

void Parser::fail_unsupported(std::uint32_t line, std::string_view what, const std::string& where) const {
  fail_at(line, unsupported_sentence(what, where, function_));
}

bool Parser::accept(char c) {
  if (!lexer_.peek().is(c)) return false;
  lexer_.take();
  return true;
}

void Parser::expect(char c) {
  if (!accept(c)) fail(std::string("Expected '") + c + "'");
}

std::string_view Parser::expect_identifier() {
  if (lexer_.peek().kind != TokenKind::identifier) fail("Expected a name");
  return lexer_.take().text;
}

std::int64_t Parser::expect_integer() {
  const ast::Operand number = parse_number();
  if (number.kind != ast::OperandKind::integer) fail("Expected an integer");
  return number.value;
}

ast::Operand Parser::parse_number() {
  const bool is_negative = accept('-');
  if (lexer_.peek().kind != TokenKind::number) fail("Expected a number");
  std::string_view text = lexer_.take().text;
  ast::Operand result;
  const char second = text.size() > 1 ? text[1] : '\0';
  int base = 10;
  if (text[0] == '0' && (second == 'f' || second == 'F' || second == 'd' || second == 'D')) {
    const bool is_double = second == 'd' || second == 'D';
    result.kind = is_double ? ast::OperandKind::float64 : ast::OperandKind::float32;
    text.remove_prefix(2);
    if (text.size() != (is_double ? 16U : 8U)) fail("A floating-point literal of wrong length");
    base = 16;
  } else if (text.find('.') != std::string_view::npos) {
    double value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc() || end != text.data() + text.size()) fail("A malformed number");
    if (is_negative) value = -value;
    result.kind = ast::OperandKind::float64;
    std::memcpy(&result.value, &value, sizeof value);
    return result;
  } else {
    result.kind = ast::OperandKind::integer;
    if (text.back() == 'U') text.remove_suffix(1);
    if (text.size() > 1 && text[0] == '0') {
      base = (second == 'x' || second == 'X') ? 16 : (second == 'b' || second == 'B') ? 2 : 8;
      text.remove_prefix(base == 8 ? 1 : 2);
    }
  }
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (status != std::errc() || end != text.data() + text.size()) fail("A malformed number");
  if (is_negative) {
    const std::uint64_t sign = result.kind == ast::OperandKind::float64   ? std::uint64_t{1} << 63
                               : result.kind == ast::OperandKind::float32 ? std::uint64_t{1} << 31
                                                                          : 0;
    value = sign != 0 ? value ^ sign : 0 - value;
  }
  result.value = static_cast<std::int64_t>(value);
  return result;
}

ast::Text Parser::parse() {
  while (lexer_.peek().kind != TokenKind::end) parse_directive();
  if (result_.version == 0) fail_at(1, "The text has no .version");
  return std::move(result_);
}

void Parser::parse_directive() {
  if (accept(';')) return;
  if (lexer_.peek().kind == TokenKind::punctuation && lexer_.peek().is('@')) fail("A directive is expected");
  if (lexer_.peek().kind != TokenKind::dotted) fail("A directive is expected");
  Linkage linkage;
  for (;;) {
    const Token token = lexer_.take();
    const std::string_view word = token.text;
    if (word == "version") {
      const std::string_view number = lexer_.take().text;  // "9.0"
      for (const char c : number) {
        if (c != '.') result_.version = result_.version * 10 + static_cast<std::uint32_t>(c - '0');
      }
      if (result_.version > kNewestVersion) {
        throw LoadError{ErrorCode::unsupported_version, token.line,
                        "PTX version " + std::string(number) + " is newer than the 9.x that is known here"};
      }
      return;
    }
    if (word == "target") {
      do {
        const std::string_view name = expect_identifier();
        if (name.substr(0, 3) != "sm_") continue;
        for (const char c : name.substr(3)) {
          if (c < '0' || c > '9') break;
          result_.target = result_.target * 10 + static_cast<std::uint32_t>(c - '0');
        }
      } while (accept(','));
      return;
    }
    if (word == "address_size") {
      if (expect_integer() != 64) fail_at(token.line, "Only .address_size 64 is executed");
      return;
    }
    if (word == "file" || word == "loc" || word == "pragma" || word == "ident") {
      const std::uint32_t line = token.line;
      while (lexer_.peek().line == line && lexer_.peek().kind != TokenKind::end) lexer_.take();
      return;
    }
    if (word == "section") return skip_section();
    if (word == "extern") {
      linkage.is_extern = true;
    } else if (word == "visible" || word == "weak" || word == "common") {
      linkage.is_visible = true;
      linkage.is_weak = word != "visible";
    } else if (word == "entry" || word == "func") {
      return parse_function(word == "entry", linkage);
    } else if (word == "global" || word == "const" || word == "shared") {
      const Space space = word == "global" ? Space::global : word == "const" ? Space::constant : Space::shared;
      result_.variables.push_back(parse_variable(space, linkage));
      return expect(';');
    } else {
      fail_at(token.line, "Unknown directive '." + std::string(word) + "'");
    }
    if (lexer_.peek().kind != TokenKind::dotted) fail("A directive is expected");
  }
}

void Parser::skip_section() {
  lexer_.take();  // Its name.
  expect('{');
  while (!lexer_.peek().is('}')) {
    if (lexer_.peek().kind == TokenKind::end) fail("A section does not end");
    lexer_.take();
  }
  lexer_.take();
}

std::vector<ast::Variable> Parser::parse_parameters() {
  std::vector<ast::Variable> parameters;
  expect('(');
  while (!accept(')')) {
    if (!lexer_.peek().is_dotted("param")) fail("Only .param parameters are executed; expected .param");
    lexer_.take();
    parameters.push_back(parse_variable(Space::param, {}));
    if (!lexer_.peek().is(')')) expect(',');
  }
  return parameters;
}

void Parser::parse_function(bool is_entry, Linkage linkage) {
  ast::Function function;
  function.is_entry = is_entry;
  function.is_visible = linkage.is_visible;
  function.is_weak = linkage.is_weak;
  function.is_extern = linkage.is_extern;
  function.line = lexer_.peek().line;
  if (!is_entry && lexer_.peek().is('(')) {
    function.variables = parse_parameters();
    function.returns_count = static_cast<std::uint32_t>(function.variables.size());
  }
  function.name = expect_identifier();
  function_ = function.name;
  if (lexer_.peek().is('(')) {
    for (auto& parameter : parse_parameters()) function.variables.push_back(std::move(parameter));
  }
  function.parameters_count = static_cast<std::uint32_t>(function.variables.size()) - function.returns_count;
  parse_function_directives(function);
  if (accept('{')) {
    function.has_body = true;
    parse_body(function);
  } else {
    expect(';');
  }
  function_ = {};
  result_.functions.push_back(std::move(function));
}

void Parser::parse_function_directives(ast::Function& function) {
  while (lexer_.peek().kind == TokenKind::dotted) {
    const Token token = lexer_.take();
    if (token.text == "maxntid") {
      parse_dimensions(function.max_threads);
    } else if (token.text == "reqntid") {
      parse_dimensions(function.required_threads);
    } else if (token.text == "maxnreg") {
      function.max_registers = static_cast<std::uint32_t>(std::clamp<std::int64_t>(expect_integer(), 0, ast::kMostRegisters));
    } else if (token.text == "minnctapersm" || token.text == "maxnctapersm") {
      expect_integer();
    } else if (token.text == "noreturn") {
      continue;
    } else if (token.text == "pragma") {
      if (lexer_.take().kind != TokenKind::string) fail("Expected a string after .pragma");
      expect(';');
    } else if (const auto what = unsupported_directive(token.text); !what.empty()) {
      fail_unsupported(token.line, what, "." + std::string(token.text));
    } else {
      fail_at(token.line, "Unknown function directive '." + std::string(token.text) + "'");
    }
  }
}

void Parser::parse_dimensions(std::uint32_t (&out)[3]) {
  out[0] = out[1] = out[2] = 1;
  for (std::uint32_t& value : out) {
    const std::int64_t number = expect_integer();
    if (number < 1 || number > 1 << 16) fail("A block dimension out of range");
    value = static_cast<std::uint32_t>(number);
    if (!accept(',')) return;
  }
}

}  // namespace mpsshim::ptx
