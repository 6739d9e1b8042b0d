// SPDX-License-Identifier: Apache-2.0
//
// Parser: declarations of variables and parameters, with their initial values.
#include <cstring>

#include "broker/cpudriver/ptx/parser.hpp"
#include "broker/cpudriver/ptx/unsupported.hpp"

namespace mpsshim::ptx {
namespace {

constexpr std::uint64_t kMaxVariableBytes = std::uint64_t{1} << 36;

}  // namespace

// After the space: [.attribute(.managed)] [.align A] [.v2] .type [.ptr ...] name[N][M] [= initializer]
ast::Variable Parser::parse_variable(Space space, Linkage linkage) {
  ast::Variable variable;
  variable.space = space;
  variable.is_extern = linkage.is_extern;
  variable.is_visible = linkage.is_visible;
  variable.is_weak = linkage.is_weak;
  variable.align = 0;
  std::uint32_t vector = 1;
  while (variable.type == Type::none) {
    if (lexer_.peek().kind != TokenKind::dotted) fail("Expected a type");
    const Token token = lexer_.take();
    if (token.text == "align") {
      const std::int64_t align = expect_integer();
      if (align < 1 || align > 4096 || (align & (align - 1)) != 0) fail("An alignment that is no power of two");
      variable.align = static_cast<std::uint32_t>(align);
    } else if (token.text == "v2" || token.text == "v4") {
      vector = token.text == "v2" ? 2 : 4;
    } else if (token.text == "attribute") {
      expect('(');
      do {
        const Token attribute = lexer_.take();
        if (!attribute.is_dotted("managed")) fail_at(attribute.line, "Unknown variable attribute");
        variable.is_managed = true;
      } while (accept(','));
      expect(')');
    } else if (const auto type = type_by_name(token.text); type && *type != Type::pred) {
      variable.type = *type;
    } else if (const auto what = unsupported_directive(token.text); !what.empty()) {
      fail_unsupported(token.line, what, "." + std::string(token.text));
    } else {
      fail_at(token.line, "Unknown type or attribute '." + std::string(token.text) + "' of a variable");
    }
  }
  if (variable.align == 0) variable.align = size_of(variable.type) * vector;
  skip_pointer_attributes();
  variable.line = lexer_.peek().line;
  variable.name = expect_identifier();
  parse_extent(variable, vector);
  if (accept('=')) parse_initializer(variable);
  return variable;
}

// `.ptr .global .align 1`: that alignment is the pointee's, not the parameter's.
void Parser::skip_pointer_attributes() {
  if (!lexer_.peek().is_dotted("ptr")) return;
  lexer_.take();
  while (lexer_.peek().kind == TokenKind::dotted) {
    if (lexer_.take().is_dotted("align")) expect_integer();
  }
}

void Parser::parse_extent(ast::Variable& variable, std::uint32_t vector) {
  std::uint64_t count = vector;
  while (accept('[')) {
    if (accept(']')) {  // [] of an extern array, or one sized by its initializer.
      count = 0;
      continue;
    }
    const std::int64_t extent = expect_integer();
    if (extent < 0 || static_cast<std::uint64_t>(extent) > kMaxVariableBytes) fail("An array too large");
    count *= static_cast<std::uint64_t>(extent);
    if (count > kMaxVariableBytes) fail("An array too large");
    expect(']');
  }
  variable.bytes = count * size_of(variable.type);
}

void Parser::parse_initializer(ast::Variable& variable) {
  if (variable.space != Space::global && variable.space != Space::constant) {
    fail("Only .global and .const variables have initial values");
  }
  std::uint64_t offset = 0;
  int depth = 0;
  do {
    while (accept('{')) ++depth;
    if (!lexer_.peek().is('}')) parse_initial_element(variable, offset);
    while (depth > 0 && accept('}')) --depth;
  } while (depth > 0 && accept(','));
  if (depth != 0) fail("An initializer does not end");
  if (variable.bytes == 0) variable.bytes = offset;
  if (offset > variable.bytes) fail("More initial values than the variable has room for");
}

// A number, a symbol, generic(symbol), or mask(symbol): one byte of an address, as in 0xFF00(symbol).
void Parser::parse_initial_element(ast::Variable& variable, std::uint64_t& offset) {
  const std::uint32_t size = size_of(variable.type);
  const std::uint32_t line = lexer_.peek().line;
  std::uint64_t bits = 0;
  std::string_view symbol;
  std::uint32_t mask_shift = 0;
  if (lexer_.peek().kind == TokenKind::identifier) {
    symbol = expect_identifier();
    if (symbol == "generic" && accept('(')) {
      symbol = expect_identifier();
      expect(')');
    }
  } else {
    ast::Operand number = parse_number();
    if (accept('(')) {
      symbol = expect_identifier();
      expect(')');
      while ((static_cast<std::uint64_t>(number.value) >> mask_shift & 0xff) == 0 && mask_shift < 56) mask_shift += 8;
      if (size != 1 || static_cast<std::uint64_t>(number.value) != std::uint64_t{0xff} << mask_shift) {
        fail_at(line, "An address mask that does not select one byte");
      }
    }
    if (number.kind == ast::OperandKind::float64 && variable.type == Type::f32) {
      double wide = 0;
      std::memcpy(&wide, &number.value, sizeof wide);
      const float narrow = static_cast<float>(wide);
      std::memcpy(&bits, &narrow, sizeof narrow);
    } else {
      bits = static_cast<std::uint64_t>(number.value);
    }
  }
  if (symbol.empty()) {
    if (offset + size > kMaxVariableBytes) fail_at(line, "An array too large");
    if (variable.initial.size() < offset + size) variable.initial.resize(offset + size);
    std::memcpy(variable.initial.data() + offset, &bits, size);
  } else {
    std::int64_t addend = 0;
    if (accept('+')) addend = expect_integer();
    if (lexer_.peek().is('-')) addend = expect_integer();
    if (size == 8) {
      variable.symbols.push_back({offset, symbol, addend, line});
    } else if (size == 1 && mask_shift == 0) {
      variable.symbols.push_back({offset, symbol, addend, line});
    } else if (size != 1 || variable.symbols.empty() || variable.symbols.back().name != symbol ||
               variable.symbols.back().offset + mask_shift / 8 != offset) {
      fail_at(line, "An address that is not stored as eight bytes in order");
    }
  }
  offset += size;
}

}  // namespace mpsshim::ptx
