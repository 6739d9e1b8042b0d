// SPDX-License-Identifier: Apache-2.0
//
// Decoder: loads, stores, atomics, moves and address conversions.
#include "broker/cpudriver/ptx/decoder.hpp"
#include "broker/cpudriver/ptx/special_registers.hpp"

namespace mpsshim::ptx {
namespace {

Space space_of(const Form& form) {
  if (form.has(Mod::global)) return Space::global;
  if (form.has(Mod::constant)) return Space::constant;
  if (form.has(Mod::shared) || form.has(Mod::shared_cta)) return Space::shared;
  if (form.has(Mod::local)) return Space::local;
  if (form.has(Mod::param)) return Space::param;
  return Space::none;
}

constexpr std::uint8_t kClock64 = 2;
constexpr std::uint8_t kGlobalTimer = 3;

int clock_index(std::string_view name) {
  constexpr std::string_view kNames[] = {"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"};
  for (int i = 0; i < 6; ++i) {
    if (kNames[i] == name) return i;
  }
  return -1;
}

}  // namespace

void FunctionDecoder::decode_load_store(const ast::Instruction& source, Form form) {
  need_operands(source, 2, 2);
  const bool is_load = form.op == Op::ld;
  const ast::Operand& value = source.operands[is_load ? 0 : 1];
  const Address where = address(source, source.operands[is_load ? 1 : 0]);
  Instruction instruction;
  instruction.space = space_of(form);
  if (instruction.space == Space::none) instruction.space = where.space;
  if (where.space != Space::none && where.space != instruction.space) fail(source, "the variable lies in another state space");
  if (instruction.space == Space::constant && !is_load) fail(source, ".const is not written");
  instruction.a = where.base;
  instruction.imm = where.offset;
  instruction.flags = where.is_wide ? kFlagWideAddress : 0;
  instruction.count = form.has(Mod::v4) ? 4 : form.has(Mod::v2) ? 2 : 1;
  // The register may be wider than the type in memory.
  const auto wider = [&](const ast::Operand& operand) {
    if (operand.kind != ast::OperandKind::reg) return form.type;
    const Type declared = ast_.registers[operand.index].type;
    return lane_bytes(declared) > lane_bytes(form.type) ? Type::b64 : form.type;
  };
  Type register_type = form.type;
  if (instruction.count == 1) {
    register_type = wider(value);
    instruction.d = is_load ? destination(source, value, register_type) : operand_row(source, value, register_type);
  } else {
    if (value.kind != ast::OperandKind::vector || value.elements.size() != instruction.count) fail(source, "a vector of registers is expected");
    for (const ast::Operand& element : value.elements) {
      if (element.kind == ast::OperandKind::reg) register_type = wider(element);
    }
    instruction.aux = list_of(source, value, register_type, is_load);
  }
  form.register_bytes = lane_bytes(register_type);
  if (where.parameter != ParameterKind::none) {
    const std::int64_t end = where.offset + std::int64_t{size_of(form.type)} * instruction.count;
    if (where.offset < 0 || end > where.slot.size) fail(source, "beyond the end of the parameter");
    form.parameter_kind = where.parameter;
    instruction.imm = where.slot.offset + where.offset;
    instruction.a = where.slot.offset + static_cast<std::uint32_t>(where.offset);
    instruction.b = where.slot.stride;
  } else if (instruction.space == Space::param && (!is_load || !ast_.is_entry)) {
    fail(source, "a parameter of a function is reached by its name only");
  }
  if (!is_load && where.space == Space::global) note_escape(symbol_of(source, source.operands[0].elements[0]));
  select_and_emit(source, instruction, form);
}

// atom d, [a], b{, c}; red [a], b
void FunctionDecoder::decode_atomic(const ast::Instruction& source, const Form& form) {
  const bool returns = form.op == Op::atom;
  const std::size_t count = (returns ? 3 : 2) + (form.has(Mod::cas) ? 1 : 0);
  need_operands(source, count, count);
  const ast::Operand& target = source.operands[returns ? 1 : 0];
  const Address where = address(source, target);
  Instruction instruction;
  instruction.space = space_of(form);
  if (instruction.space == Space::none) instruction.space = where.space;
  if (where.space != Space::none && where.space != instruction.space) fail(source, "the variable lies in another state space");
  if (where.parameter != ParameterKind::none || where.space == Space::local) fail(source, "atomics work on global and shared memory");
  if (where.space == Space::global) note_escape(symbol_of(source, target.elements[0]));
  instruction.a = where.base;
  instruction.imm = where.offset;
  instruction.flags = where.is_wide ? kFlagWideAddress : 0;
  if (returns && source.operands[0].kind != ast::OperandKind::sink) instruction.d = destination(source, source.operands[0], form.type);
  instruction.b = operand_row(source, source.operands[returns ? 2 : 1], form.type);
  if (form.has(Mod::cas)) instruction.c = operand_row(source, source.operands[3], form.type);
  select_and_emit(source, instruction, form);
}

void FunctionDecoder::decode_move(const ast::Instruction& source, const Form& form) {
  need_operands(source, 2, 2);
  if (source.operands[0].kind == ast::OperandKind::vector) return decode_pack(source, form, false);
  if (source.operands[1].kind == ast::OperandKind::vector) return decode_pack(source, form, true);
  if (form.type != Type::pred && decode_special_move(source, form)) return;
  Instruction instruction;
  instruction.d = destination(source, source.operands[0], form.type);
  if (form.type == Type::pred) {
    instruction.a = predicate_row(source, source.operands[1]);
    if (source.operands[1].is_negated) instruction.flags = kFlagNegateA;
  } else {
    instruction.a = operand_row(source, source.operands[1], form.type);
  }
  select_and_emit(source, instruction, form);
}

// Moves that are something else: clocks, addresses of .local variables (they depend on the call), and dynamic shared
// memory with an offset.
bool FunctionDecoder::decode_special_move(const ast::Instruction& source, const Form& form) {
  const ast::Operand& operand = source.operands[1];
  Instruction instruction;
  if (operand.kind == ast::OperandKind::symbol) {
    const int clock = clock_index(operand.name);
    if (clock >= 0) {
      if ((clock == kClock64 || clock == kGlobalTimer) != (lane_bytes(form.type) == 8)) fail(source, "the clock has another size than the type");
      instruction.d = destination(source, source.operands[0], form.type);
      instruction.imm = clock;
      const Handler handler = select_control(form);
      emit(source, instruction, HandlerPair{{handler, handler}});
      return true;
    }
  }
  if (operand.kind != ast::OperandKind::symbol && operand.kind != ast::OperandKind::variable) return false;
  if (operand.kind == ast::OperandKind::symbol && special_register(operand.name, operand.component)) return false;
  const bool is_local = operand.kind == ast::OperandKind::variable && ast_.variables[operand.index].space == Space::local;
  const Symbol symbol = is_local ? Symbol{} : symbol_of(source, operand);
  const bool is_dynamic = symbol.kind == SymbolKind::shared && image_.shared(symbol.index).is_dynamic && operand.value != 0;
  if (!is_local && !is_dynamic) return false;
  const std::uint32_t bytes = lane_bytes(form.type);
  if (is_local && bytes != 8) fail(source, "the address of a .local variable needs 64 bits");
  const Special row = is_local ? Special::frame_local : bytes == 8 ? Special::dynamic_shared64 : Special::dynamic_shared;
  instruction.d = destination(source, source.operands[0], form.type);
  instruction.a = operand_at(Base::special, special_offset(row));
  instruction.b = pool_.constant(static_cast<std::uint64_t>(operand.value) + (is_local ? variable_locals_[operand.index] : 0), bytes);
  Form add;
  add.op = Op::add;
  add.type = bytes == 8 ? Type::u64 : Type::u32;
  select_and_emit(source, instruction, add);
  return true;
}

// mov.b64 d, {a, b}; mov.b32 {a, b}, d
void FunctionDecoder::decode_pack(const ast::Instruction& source, const Form& form, bool is_pack) {
  const ast::Operand& whole = source.operands[is_pack ? 0 : 1];
  const ast::Operand& parts = source.operands[is_pack ? 1 : 0];
  const auto count = static_cast<std::uint32_t>(parts.elements.size());
  const std::uint32_t bytes = size_of(form.type);
  if (count == 0 || bytes % count != 0) fail(source, "a vector of this size does not make the type");
  const Type part = bytes / count == 4 ? Type::b32 : bytes / count == 2 ? Type::b16 : Type::b8;
  Instruction instruction;
  instruction.count = static_cast<std::uint8_t>(count);
  instruction.aux = list_of(source, parts, part, !is_pack);
  if (is_pack)
    instruction.d = destination(source, whole, form.type);
  else
    instruction.a = operand_row(source, whole, form.type);
  const Handler baseline = isa_baseline::select_pack(bytes, count, is_pack);
  emit(source, instruction, HandlerPair{{baseline, processor_has_v3() ? isa_v3::select_pack(bytes, count, is_pack) : baseline}});
}

void FunctionDecoder::decode_cvta(const ast::Instruction& source, Form form) {
  need_operands(source, 2, 2);
  if (form.type != Type::u64) fail(source, "only 64-bit addresses are executed");
  Instruction instruction;
  instruction.d = destination(source, source.operands[0], Type::u64);
  instruction.a = operand_row(source, source.operands[1], Type::u64);
  const Space space = space_of(form);
  if (space == Space::none) fail(source, "a state space is expected");
  if (space == Space::global || space == Space::constant) {  // Generic already.
    form = Form{};
    form.op = Op::mov;
    form.type = Type::b64;
  }
  if (space == Space::param && !ast_.is_entry) fail(source, "the address of a function's parameter is not executed");
  if (form.op == Op::mov) return select_and_emit(source, instruction, form);
  const Handler handler = select_control(form);
  emit(source, instruction, HandlerPair{{handler, handler}});
}

void FunctionDecoder::decode_isspacep(const ast::Instruction& source, const Form& form) {
  need_operands(source, 2, 2);
  Instruction instruction;
  instruction.space = space_of(form);
  if (instruction.space == Space::none) fail(source, "a state space is expected");
  instruction.d = destination(source, source.operands[0], Type::pred);
  instruction.a = operand_row(source, source.operands[1], Type::u64);
  select_and_emit(source, instruction, form);
}

}  // namespace mpsshim::ptx
