// SPDX-License-Identifier: Apache-2.0
//
// Parser: function bodies.
#include <algorithm>
#include <charconv>

#include "broker/cpudriver/ptx/parser.hpp"
#include "broker/cpudriver/ptx/unsupported.hpp"

namespace mpsshim::ptx {
namespace {

constexpr std::uint32_t kMaxRegisters = 1U << 20;  // Per function; a frame is then 256 MiB at most.

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

void Parser::open_scope(ast::Function& function) {
  Scope scope;
  scope.id = static_cast<std::uint32_t>(function.scope_parents.size());
  if (!scopes_.empty()) scope.parameter_bytes = scopes_.back().parameter_bytes;
  function.scope_parents.push_back(scopes_.empty() ? 0 : scopes_.back().id);
  scopes_.push_back(std::move(scope));
}

bool Parser::find_name(std::string_view name, Name& out) const {
  std::size_t digits = name.size();
  while (digits > 0 && is_digit(name[digits - 1])) --digits;
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto exact = scope->names.find(name); exact != scope->names.end()) {
      out = exact->second;
      return true;
    }
    if (digits == name.size()) continue;
    const auto range = scope->ranges.find(name.substr(0, digits));
    if (range == scope->ranges.end()) continue;
    std::uint32_t number = 0;
    const auto [end, status] = std::from_chars(name.data() + digits, name.data() + name.size(), number);
    if (status != std::errc() || number >= range->second.count) continue;
    out = Name{true, range->second.first + number};
    return true;
  }
  return false;
}

void Parser::parse_body(ast::Function& function) {
  scopes_.clear();
  open_scope(function);
  for (std::uint32_t i = 0; i < function.variables.size(); ++i) {
    scopes_[0].names[function.variables[i].name] = Name{false, i};
  }
  while (!scopes_.empty()) {
    if (lexer_.peek().kind == TokenKind::end) fail("A function does not end");
    if (accept('{')) {
      open_scope(function);
    } else if (accept('}')) {
      scopes_.pop_back();
    } else if (!accept(';')) {
      parse_statement(function);
    }
  }
}

void Parser::parse_statement(ast::Function& function) {
  const Token& first = lexer_.peek();
  if (first.kind == TokenKind::dotted) {
    const Token token = lexer_.take();
    if (token.text == "reg") return parse_registers(function);
    if (token.text == "local") return parse_local_variable(function, Space::local, {});
    if (token.text == "shared") return parse_local_variable(function, Space::shared, {});
    if (token.text == "param") return parse_local_variable(function, Space::param, {});
    if (token.text == "global") return parse_local_variable(function, Space::global, {});
    if (token.text == "const") return parse_local_variable(function, Space::constant, {});
    if (token.text == "extern" && lexer_.peek().is_dotted("shared")) {
      lexer_.take();
      return parse_local_variable(function, Space::shared, Linkage{true, false});
    }
    if (token.text == "pragma") {
      if (lexer_.take().kind != TokenKind::string) fail("Expected a string after .pragma");
      return expect(';');
    }
    if (token.text == "loc" || token.text == "file") {
      while (lexer_.peek().line == token.line && lexer_.peek().kind != TokenKind::end) lexer_.take();
      return;
    }
    fail_at(token.line, "Unknown directive '." + std::string(token.text) + "' in a function");
  }
  std::uint32_t guard = ast::kNone;
  bool negated = false;
  if (accept('@')) {
    negated = accept('!');
    guard = expect_predicate(function);
  }
  const Token opcode = lexer_.peek();
  if (opcode.kind != TokenKind::identifier) fail("Expected an instruction");
  lexer_.take();
  if (guard == ast::kNone && accept(':')) {
    if (lexer_.peek().is_dotted("callprototype")) return parse_prototype(function, opcode.text);
    function.labels.push_back({opcode.text, scopes_.back().id, static_cast<std::uint32_t>(function.instructions.size())});
    return;
  }
  parse_instruction(function, opcode, guard, negated);
}

std::uint32_t Parser::expect_predicate(const ast::Function& function) {
  Name name;
  const std::uint32_t line = lexer_.peek().line;
  const std::string_view text = expect_identifier();
  if (!find_name(text, name) || !name.is_register || function.registers[name.index].type != Type::pred) {
    fail_at(line, "'" + std::string(text) + "' is no predicate register");
  }
  return name.index;
}

void Parser::parse_registers(ast::Function& function) {
  const Token token = lexer_.take();
  const auto type = token.kind == TokenKind::dotted ? type_by_name(token.text) : std::nullopt;
  if (!type) fail_at(token.line, "Unknown register type '." + std::string(token.text) + "'");
  do {
    const std::string_view name = expect_identifier();
    const auto first = static_cast<std::uint32_t>(function.registers.size());
    std::uint32_t count = 1;
    if (accept('<')) {
      const std::int64_t value = expect_integer();
      if (value < 0 || value > kMaxRegisters) fail("Too many registers");
      count = static_cast<std::uint32_t>(value);
      expect('>');
      scopes_.back().ranges[name] = RegisterRange{first, count};
    } else {
      scopes_.back().names[name] = Name{true, first};
    }
    if (function.registers.size() + count > kMaxRegisters) fail("Too many registers");
    function.registers.resize(function.registers.size() + count, ast::Register{*type});
  } while (accept(','));
  expect(';');
}

void Parser::parse_local_variable(ast::Function& function, Space space, Linkage linkage) {
  ast::Variable variable = parse_variable(space, linkage);
  expect(';');
  Scope& scope = scopes_.back();
  if (space == Space::param) {
    variable.scope_offset = (scope.parameter_bytes + 15) & ~15U;
    if (variable.bytes > 1U << 20) fail("A parameter too large");
    scope.parameter_bytes = variable.scope_offset + static_cast<std::uint32_t>(variable.bytes);
  }
  scope.names[variable.name] = Name{false, static_cast<std::uint32_t>(function.variables.size())};
  function.variables.push_back(std::move(variable));
}

// name : .callprototype (returns) _ (parameters) ;
void Parser::parse_prototype(ast::Function& function, std::string_view name) {
  lexer_.take();
  ast::Prototype prototype;
  prototype.name = name;
  if (lexer_.peek().is('(')) prototype.returns = parse_parameters();
  expect_identifier();
  if (lexer_.peek().is('(')) prototype.parameters = parse_parameters();
  if (lexer_.peek().is_dotted("noreturn")) lexer_.take();
  expect(';');
  function.prototypes.push_back(std::move(prototype));
}

void Parser::parse_instruction(ast::Function& function, const Token& opcode, std::uint32_t guard, bool negated) {
  ast::Instruction instruction;
  instruction.line = opcode.line;
  instruction.guard = guard;
  instruction.guard_is_negated = negated;
  instruction.scope = scopes_.back().id;
  instruction.opcode = opcode.text;
  while (lexer_.peek().kind == TokenKind::dotted) instruction.modifiers.push_back(lexer_.take().text);
  if (const auto what = unsupported_instruction(opcode.text); !what.empty()) {
    fail_unsupported(opcode.line, what, ast::text_of(instruction));
  }
  if (!accept(';')) instruction.operands = parse_list(';');
  function.instructions.push_back(std::move(instruction));
}

std::vector<ast::Operand> Parser::parse_list(char end) {
  std::vector<ast::Operand> operands;
  if (accept(end)) return operands;
  do {
    operands.push_back(parse_operand());
  } while (accept(','));
  expect(end);
  return operands;
}

ast::Operand Parser::parse_operand() {
  const Token& token = lexer_.peek();
  ast::Operand operand;
  if (token.kind == TokenKind::number || token.is('-')) return parse_number();
  if (token.kind == TokenKind::identifier) return parse_named_operand();
  if (token.is('[')) return parse_address();
  if (accept('{')) {
    operand.kind = ast::OperandKind::vector;
    operand.elements = parse_list('}');
    return operand;
  }
  if (accept('(')) {
    operand.kind = ast::OperandKind::group;
    operand.elements = parse_list(')');
    return operand;
  }
  if (accept('!')) {
    operand = parse_named_operand();
    operand.is_negated = true;
    return operand;
  }
  fail("Expected an operand");
}

ast::Operand Parser::parse_named_operand() {
  ast::Operand operand;
  operand.name = expect_identifier();
  Name name;
  if (operand.name == "_") {
    operand.kind = ast::OperandKind::sink;
  } else if (operand.name == "WARP_SZ") {
    operand.kind = ast::OperandKind::integer;
    operand.value = 32;
  } else if (find_name(operand.name, name)) {
    operand.kind = name.is_register ? ast::OperandKind::reg : ast::OperandKind::variable;
    operand.index = name.index;
  } else {
    operand.kind = ast::OperandKind::symbol;
  }
  if (operand.kind == ast::OperandKind::symbol && lexer_.peek().kind == TokenKind::dotted) {
    operand.component = lexer_.take().text;
  }
  if (accept('|')) {
    const std::string_view second = expect_identifier();
    if (second != "_") {
      if (!find_name(second, name) || !name.is_register) fail("Expected a predicate register after '|'");
      operand.second = name.index;
    }
  }
  if (operand.kind == ast::OperandKind::symbol || operand.kind == ast::OperandKind::variable) {
    if (accept('+'))
      operand.value = expect_integer();
    else if (lexer_.peek().is('-'))
      operand.value = expect_integer();
  }
  return operand;
}

// [register], [register+-4], [name+8], [64]
ast::Operand Parser::parse_address() {
  expect('[');
  ast::Operand operand;
  operand.kind = ast::OperandKind::address;
  if (lexer_.peek().kind == TokenKind::number) {
    operand.elements.push_back(parse_number());
  } else {
    operand.elements.push_back(parse_named_operand());
    operand.value = operand.elements[0].value;
    operand.elements[0].value = 0;
    if (accept('+'))
      operand.value += expect_integer();
    else if (lexer_.peek().is('-'))
      operand.value += expect_integer();
  }
  expect(']');
  return operand;
}

}  // namespace mpsshim::ptx
