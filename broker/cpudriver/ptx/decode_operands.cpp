// SPDX-License-Identifier: Apache-2.0
//
// Decoder: operands. Registers, literals, special registers, addresses of variables and functions become rows.
#include <cstring>

#include "broker/cpudriver/ptx/decoder.hpp"
#include "broker/cpudriver/ptx/special_registers.hpp"
#include "broker/cpudriver/ptx/unsupported.hpp"

namespace mpsshim::ptx {
namespace {

bool is_f32(Type t) { return t == Type::f32; }
bool is_float(Type t) { return t == Type::f32 || t == Type::f64 || t == Type::f16 || t == Type::bf16 || t == Type::f16x2 || t == Type::bf16x2; }

std::uint64_t truncated(std::uint64_t value, std::uint32_t bytes) { return bytes >= 8 ? value : value & ((std::uint64_t{1} << (bytes * 8)) - 1); }

}  // namespace

std::uint32_t RowPool::constant(std::uint64_t value, std::uint32_t bytes) {
  auto& known = bytes == 8 ? wide_ : narrow_;
  if (const auto found = known.find(value); found != known.end()) return found->second;
  const std::uint32_t offset = static_cast<std::uint32_t>(words_.size()) * 4;
  if (words_.size() > (1U << 27)) throw LoadError{ErrorCode::invalid_ptx, 0, "Too many different constants in the image"};
  for (std::uint32_t i = 0; i < kLanes; ++i) {
    words_.push_back(static_cast<std::uint32_t>(value));
    if (bytes == 8) words_.push_back(static_cast<std::uint32_t>(value >> 32));
  }
  return known[value] = operand_at(Base::constants, offset);
}

std::uint32_t RowPool::symbol(std::uint32_t global, std::int64_t addend) {
  auto& known = symbols_[global];
  if (const auto found = known.find(addend); found != known.end()) return found->second;
  const std::size_t index = program_.symbol_rows.size();
  if (index >= 1U << 21) throw LoadError{ErrorCode::invalid_ptx, 0, "Too many different addresses in the image"};
  program_.symbol_rows.push_back(SymbolRow{global, addend});
  return known[addend] = operand_at(Base::symbols, static_cast<std::uint32_t>(index) * 256);
}

void RowPool::finish() {
  program_.constants.assign(words_.size() / 2 + 8, 0);
  const auto address = reinterpret_cast<std::uint64_t>(program_.constants.data());
  program_.constant_rows = reinterpret_cast<std::byte*>((address + 63) & ~std::uint64_t{63});
  if (!words_.empty()) std::memcpy(program_.constant_rows, words_.data(), words_.size() * 4);
}

std::uint32_t FunctionDecoder::destination(const ast::Instruction& source, const ast::Operand& operand, Type type) const {
  if (operand.kind != ast::OperandKind::reg) fail(source, "the destination is no register");
  const Type declared = ast_.registers[operand.index].type;
  const bool fits = (type == Type::pred) == (declared == Type::pred) && (type == Type::pred || lane_bytes(type) == lane_bytes(declared));
  if (!fits) fail(source, "the destination's register has another size than the type");
  return register_row(operand.index);
}

std::uint32_t FunctionDecoder::predicate_row(const ast::Instruction& source, const ast::Operand& operand) const {
  if (operand.kind == ast::OperandKind::integer) return operand_at(Base::special, special_offset(operand.value != 0 ? Special::ones : Special::zero));
  if (operand.kind != ast::OperandKind::reg || ast_.registers[operand.index].type != Type::pred) fail(source, "a predicate is expected");
  return register_row(operand.index);
}

std::uint32_t FunctionDecoder::operand_row(const ast::Instruction& source, const ast::Operand& operand, Type type) {
  switch (operand.kind) {
    case ast::OperandKind::reg: {
      const Type declared = ast_.registers[operand.index].type;
      if (declared == Type::pred || lane_bytes(declared) != lane_bytes(type))
        fail(source, "'" + std::string(operand.name) + "' has another size than the type");
      if (operand.is_negated) fail(source, "only predicates are negated with '!'");
      return register_row(operand.index);
    }
    case ast::OperandKind::integer:
    case ast::OperandKind::float32:
    case ast::OperandKind::float64: return literal_row(source, operand, type);
    case ast::OperandKind::symbol:
    case ast::OperandKind::variable: return symbol_row(source, operand, type);
    case ast::OperandKind::address:
    case ast::OperandKind::vector:
    case ast::OperandKind::group:
    case ast::OperandKind::sink: break;
  }
  fail(source, "an operand of a kind that does not fit here");
}

std::uint32_t FunctionDecoder::literal_row(const ast::Instruction& source, const ast::Operand& operand, Type type) {
  const std::uint32_t bytes = size_of(type);
  auto value = static_cast<std::uint64_t>(operand.value);
  if (operand.kind == ast::OperandKind::integer) {
    if (is_float(type)) fail(source, "an integer where a floating-point value is expected");
  } else if (operand.kind == ast::OperandKind::float32) {
    if (!is_f32(type) && type != Type::b32) fail(source, "an f32 literal where another type is expected");
  } else if (is_f32(type)) {
    double wide = 0;
    std::memcpy(&wide, &value, sizeof wide);
    const auto narrow = static_cast<float>(wide);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &narrow, sizeof bits);
    value = bits;
  } else if (type != Type::f64 && type != Type::b64) {
    fail(source, "an f64 literal where another type is expected");
  }
  return pool_.constant(truncated(value, bytes), lane_bytes(type));
}

Symbol FunctionDecoder::symbol_of(const ast::Instruction& source, const ast::Operand& operand) const {
  if (operand.kind == ast::OperandKind::variable) return image_.find_local(ast_.variables[operand.index]);
  return image_.find(record_.text, operand.name, source.line);
}

void FunctionDecoder::note_escape(Symbol symbol) {
  if (symbol.kind != SymbolKind::global) return;
  GlobalInfo& info = program_.globals[symbol.index];
  if (info.space == GlobalSpace::global) info.may_be_written = true;
}

std::uint32_t FunctionDecoder::symbol_row(const ast::Instruction& source, const ast::Operand& operand, Type type) {
  const std::uint32_t bytes = lane_bytes(type);
  if (operand.kind == ast::OperandKind::symbol) {
    if (const auto special = special_register(operand.name, operand.component)) {
      if ((bytes == 8) != special->is_wide) fail(source, "'" + std::string(operand.name) + "' has another size than the type");
      const bool is_reserved = special->row == Special::reserved_smem || special->row == Special::reserved_smem_1;
      program_.uses_reserved_shared = program_.uses_reserved_shared || is_reserved;
      return operand_at(Base::special, special_offset(special->row));
    }
  } else if (ast_.variables[operand.index].space == Space::param && ast_.is_entry && operand.index < ast_.parameters_count) {
    return pool_.constant(variable_locals_[operand.index] + static_cast<std::uint64_t>(operand.value), bytes);
  }
  const Symbol symbol = symbol_of(source, operand);
  switch (symbol.kind) {
    case SymbolKind::global:
      if (bytes != 8) fail(source, "the address of '" + std::string(operand.name) + "' needs 64 bits");
      note_escape(symbol);
      return pool_.symbol(symbol.index, operand.value);
    case SymbolKind::function:
      if (bytes != 8) fail(source, "a function's address needs 64 bits");
      return pool_.constant(kFunctionHandleBase + std::uint64_t{symbol.index} * 16, 8);
    case SymbolKind::shared: {
      const SharedVariable& shared = image_.shared(symbol.index);
      if (!shared.is_dynamic) return pool_.constant(shared.offset + static_cast<std::uint64_t>(operand.value), bytes);
      if (operand.value != 0) break;
      return operand_at(Base::special, special_offset(bytes == 8 ? Special::dynamic_shared64 : Special::dynamic_shared));
    }
    case SymbolKind::none: break;
  }
  if (const auto what = unsupported_register(operand.name); !what.empty()) {
    throw LoadError{ErrorCode::invalid_ptx, source.line, unsupported_sentence(what, operand.name, function_.name)};
  }
  fail(source, "'" + std::string(operand.name) + "' is not known or cannot stand here");
}

FunctionDecoder::Address FunctionDecoder::address(const ast::Instruction& source, const ast::Operand& operand) {
  if (operand.kind != ast::OperandKind::address) fail(source, "an address in brackets is expected");
  const ast::Operand& base = operand.elements[0];
  Address result;
  result.offset = operand.value;
  if (base.kind == ast::OperandKind::reg) {
    const Type type = ast_.registers[base.index].type;
    if (type == Type::pred || size_of(type) < 4) fail(source, "an address register has 32 or 64 bits");
    result.is_wide = lane_bytes(type) == 8;
    result.base = register_row(base.index);
    return result;
  }
  if (base.kind == ast::OperandKind::integer) {
    result.base = pool_.constant(static_cast<std::uint64_t>(base.value), 8);
    return result;
  }
  return variable_address(source, base, operand.value);
}

FunctionDecoder::Address FunctionDecoder::variable_address(const ast::Instruction& source, const ast::Operand& operand, std::int64_t offset) {
  Address result;
  result.offset = offset;
  if (operand.kind == ast::OperandKind::variable) {
    const ast::Variable& variable = ast_.variables[operand.index];
    if (variable.space == Space::local) {
      result.space = Space::local;
      result.base = operand_at(Base::special, special_offset(Special::frame_local));
      result.offset += variable_locals_[operand.index];
      return result;
    }
    if (variable.space == Space::param) {
      result.space = Space::param;
      const bool is_entry_parameter = ast_.is_entry && operand.index < ast_.parameters_count;
      result.parameter = is_entry_parameter ? ParameterKind::entry : ParameterKind::slot;
      result.slot =
          is_entry_parameter ? Slot{variable_locals_[operand.index], 0, static_cast<std::uint32_t>(variable.bytes)} : variable_slots_[operand.index];
      return result;
    }
  }
  const Symbol symbol = symbol_of(source, operand);
  if (symbol.kind == SymbolKind::global) {
    result.space = program_.globals[symbol.index].space == GlobalSpace::constant ? Space::constant : Space::global;
    result.base = pool_.symbol(symbol.index, 0);
  } else if (symbol.kind == SymbolKind::shared) {
    const SharedVariable& shared = image_.shared(symbol.index);
    result.space = Space::shared;
    if (shared.is_dynamic) {
      result.base = operand_at(Base::special, special_offset(Special::dynamic_shared64));
    } else {
      result.base = pool_.constant(shared.offset, 8);
    }
  } else {
    fail(source, "'" + std::string(operand.name) + "' is no variable");
  }
  return result;
}

// The rows of {a, b, ...}; `_` leaves an element out of a load.
std::uint32_t FunctionDecoder::list_of(const ast::Instruction& source, const ast::Operand& vector, Type type, bool is_destination) {
  std::vector<std::uint32_t> rows;
  for (const ast::Operand& element : vector.elements) {
    if (element.kind == ast::OperandKind::sink && is_destination)
      rows.push_back(kNoOperand);
    else
      rows.push_back(is_destination ? destination(source, element, type) : operand_row(source, element, type));
  }
  const auto index = static_cast<std::uint32_t>(program_.lists.size());
  program_.lists.insert(program_.lists.end(), rows.begin(), rows.end());
  return index;
}

}  // namespace mpsshim::ptx
