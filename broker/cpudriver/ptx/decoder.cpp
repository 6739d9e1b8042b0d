// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/ptx/decoder.hpp"

#include <algorithm>

namespace mpsshim::ptx {
namespace {

constexpr std::uint32_t kMaxFrameBytes = 1U << 28;

std::uint32_t align_up(std::uint32_t value, std::uint32_t alignment) { return (value + alignment - 1) / alignment * alignment; }

Type twice(Type type) {
  switch (type) {
    case Type::u16: return Type::u32;
    case Type::s16: return Type::s32;
    case Type::u32: return Type::u64;
    case Type::s32: return Type::s64;
    default: return Type::none;
  }
}

}  // namespace

void FunctionDecoder::fail(const ast::Instruction& source, const std::string& text) const {
  throw LoadError{ErrorCode::invalid_ptx, source.line, "'" + ast::text_of(source) + "' in '" + function_.name + "': " + text};
}

void FunctionDecoder::need_operands(const ast::Instruction& source, std::size_t least, std::size_t most) const {
  if (source.operands.size() < least || source.operands.size() > most) fail(source, "a wrong number of operands");
}

FunctionDecoder::FunctionDecoder(const Image& image, RowPool& pool, Program& program, std::uint32_t function)
    : image_(image),
      pool_(pool),
      program_(program),
      record_(image.functions()[function]),
      ast_(*image.functions()[function].declaration),
      function_(program.functions[function]) {}

// Wide rows, narrow rows, predicates, then the .param variables; .local variables have their own memory.
void FunctionDecoder::lay_out_frame() {
  register_offsets_.resize(ast_.registers.size());
  std::uint64_t offset = 0;
  std::uint32_t words = 0;
  for (const std::uint32_t bytes : {256U, 128U, 4U}) {
    for (std::size_t i = 0; i < ast_.registers.size(); ++i) {
      const Type type = ast_.registers[i].type;
      const std::uint32_t need = type == Type::pred ? 4 : lane_bytes(type) * kLanes;
      if (need != bytes) continue;
      register_offsets_[i] = static_cast<std::uint32_t>(offset);
      offset += bytes;
      words += bytes / 128;
      if (offset > kMaxFrameBytes) throw LoadError{ErrorCode::invalid_ptx, ast_.line, "Too many registers in '" + function_.name + "'"};
    }
  }
  // nvcc's PTX names each value once; hardware keeps about a third of them at a time.
  function_.registers = std::clamp(16 + words / 3, 16U, ast::kMostRegisters);
  scratch_offset_ = align_up(static_cast<std::uint32_t>(offset), 64);
  auto end = scratch_offset_ + 4 * kLanes;
  lay_out_slots(end);
  function_.frame_bytes = align_up(end, 64);
  if (function_.frame_bytes > kMaxFrameBytes)
    throw LoadError{ErrorCode::invalid_ptx, ast_.line, "The parameters of '" + function_.name + "' are too large"};
}

void FunctionDecoder::lay_out_slots(std::uint32_t& offset) {
  const std::size_t count = ast_.variables.size();
  variable_slots_.resize(count);
  variable_locals_.resize(count);
  const std::uint32_t declared = ast_.returns_count + ast_.parameters_count;
  std::uint32_t entry_offset = 0;
  std::uint32_t scope_end = 0;
  std::uint32_t scope_begin = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const ast::Variable& variable = ast_.variables[i];
    const auto bytes = static_cast<std::uint32_t>(variable.bytes);
    if (i == declared) scope_begin = scope_end = align_up(offset, 64);
    if (variable.space == Space::local) {
      function_.local_bytes = align_up(function_.local_bytes, variable.align);
      variable_locals_[i] = function_.local_bytes;
      if (variable.bytes > 1U << 26) throw LoadError{ErrorCode::invalid_ptx, variable.line, "More than 64 MiB of local memory"};
      function_.local_bytes += bytes;
    } else if (variable.space == Space::param && i < declared && ast_.is_entry) {
      entry_offset = align_up(entry_offset, variable.align);
      variable_locals_[i] = entry_offset;
      function_.parameters[i] = Slot{entry_offset, 0, bytes};
      entry_offset += bytes;
    } else if (variable.space == Space::param) {
      const std::uint32_t stride = align_up(std::max(bytes, 1U), 16);
      if (i < declared) {
        variable_slots_[i] = Slot{align_up(offset, 64), stride, bytes};
        offset = variable_slots_[i].offset + stride * kLanes;
        Slot& slot = i < ast_.returns_count ? function_.returns[i] : function_.parameters[i - ast_.returns_count];
        slot = variable_slots_[i];
      } else {  // Parameters of calls: sibling scopes use the same place.
        variable_slots_[i] = Slot{scope_begin + align_up(variable.scope_offset, 16) * kLanes, stride, bytes};
        scope_end = std::max(scope_end, variable_slots_[i].offset + stride * kLanes);
      }
    }
  }
  offset = std::max(offset, scope_end);
}

void FunctionDecoder::decode() {
  lay_out_frame();
  function_.entry_pc = static_cast<std::uint32_t>(program_.code.size());
  pc_of_.reserve(ast_.instructions.size() + 1);
  for (const ast::Instruction& source : ast_.instructions) {
    pc_of_.push_back(static_cast<std::uint32_t>(program_.code.size()));
    decode_instruction(source);
  }
  pc_of_.push_back(static_cast<std::uint32_t>(program_.code.size()));
  ast::Instruction end;  // Running off the end returns.
  end.opcode = "ret";
  end.line = ast_.instructions.empty() ? ast_.line : ast_.instructions.back().line;
  decode_instruction(end);
  resolve_branches();
}

void FunctionDecoder::parse_modifiers(const ast::Instruction& source, const OpcodeRow& row, Form& form) const {
  form.op = row.op;
  std::uint32_t types = 0;
  for (const std::string_view word : source.modifiers) {
    if (const auto type = type_by_name(word)) {
      form.type2 = form.type;
      form.type = *type;
      ++types;
    } else if (const auto modifier = modifier_by_name(word); modifier && row.allowed.has(*modifier)) {
      form.mods.add(*modifier);
    } else {
      fail(source, "modifier '." + std::string(word) + "' is not known here; the CPU driver does not execute it");
    }
  }
  const bool is_barrier_reduction = row.op == Op::bar && form.has(Mod::red);
  const std::uint32_t expected = is_barrier_reduction ? 1 : row.types;
  const bool is_dot_or_pair = row.op == Op::cvt && types == 2;
  if (types != expected && !is_dot_or_pair) fail(source, "a wrong number of types");
}

void FunctionDecoder::decode_instruction(const ast::Instruction& source) {
  const OpcodeRow* row = find_opcode(source.opcode);
  if (row == nullptr) fail(source, "opcode '" + std::string(source.opcode) + "' is not known; the CPU driver does not execute it");
  Form form;
  parse_modifiers(source, *row, form);
  if (rounds_by_default(form)) form.mods.add(Mod::rn);
  switch (row->op) {
    case Op::ld:
    case Op::st: return decode_load_store(source, form);
    case Op::atom:
    case Op::red: return decode_atomic(source, form);
    case Op::mov: return decode_move(source, form);
    case Op::cvta: return decode_cvta(source, form);
    case Op::isspacep: return decode_isspacep(source, form);
    case Op::set:
    case Op::setp: return decode_compare(source, form);
    case Op::shfl:
    case Op::vote:
    case Op::match:
    case Op::redux: return decode_collective(source, form);
    case Op::bar: return decode_barrier(source, form);
    case Op::bra: return decode_branch(source, form);
    case Op::call: return decode_call(source, form);
    case Op::ret:
    case Op::exit:
    case Op::trap:
    case Op::griddepcontrol:
    case Op::fence: need_operands(source, 0, 0); return select_and_emit(source, {}, form);
    case Op::prefetch:
    case Op::nanosleep: need_operands(source, 1, 1); return select_and_emit(source, {}, form);
    default: return decode_plain(source, *row, form);
  }
}

// Old texts leave the rounding of mad.f32 out, and mean the nearest (PTX ISA, "mad": required from version 3.2 on).
bool FunctionDecoder::rounds_by_default(const Form& form) const {
  constexpr std::uint32_t kLastLenientVersion = 31;
  const bool says_rounding = form.has(Mod::rn) || form.has(Mod::rz) || form.has(Mod::rm) || form.has(Mod::rp);
  return form.op == Op::mad && form.type == Type::f32 && !says_rounding && image_.text(record_.text).version <= kLastLenientVersion;
}

void FunctionDecoder::decode_plain(const ast::Instruction& source, const OpcodeRow& row, const Form& form) {
  std::string_view shape = row.operands;
  if (form.op == Op::cvt && (form.type2 == Type::f16x2 || form.type2 == Type::bf16x2)) shape = "2tt";
  if ((form.op == Op::mul || form.op == Op::mad) && form.has(Mod::wide)) shape = form.op == Op::mul ? "wtt" : "wttw";
  need_operands(source, shape.size(), shape.size());
  Instruction instruction;
  std::uint32_t* const fields[] = {&instruction.d, &instruction.a, &instruction.b, &instruction.c, &instruction.e};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const ast::Operand& operand = source.operands[i];
    const char kind = shape[i];
    if (kind == 'i') {
      if (operand.kind != ast::OperandKind::integer) fail(source, "an immediate is expected");
      instruction.imm = operand.value;
      continue;
    }
    const Type type = kind == '2'                  ? form.type2
                      : kind == 'u'                ? Type::u32
                      : kind == 'w'                ? twice(form.type)
                      : kind == 'p' || kind == 'P' ? Type::pred
                                                   : form.type;
    if (i == 0) {
      *fields[i] = destination(source, operand, type);
    } else if (type == Type::pred) {
      *fields[i] = predicate_row(source, operand);
      const std::uint8_t flags[] = {0, kFlagNegateA, kFlagNegateB, kFlagNegateC, 0};
      if (operand.is_negated) instruction.flags |= flags[i];
    } else {
      *fields[i] = form.op == Op::cvt ? conversion_source(source, operand, type) : operand_row(source, operand, type);
    }
  }
  select_and_emit(source, instruction, form);
}

// cvt may read a register wider than its source type: the low half is taken, by way of a scratch row.
std::uint32_t FunctionDecoder::conversion_source(const ast::Instruction& source, const ast::Operand& operand, Type type) {
  const bool is_wider = operand.kind == ast::OperandKind::reg && lane_bytes(ast_.registers[operand.index].type) == 8 && lane_bytes(type) == 4;
  if (!is_wider) return operand_row(source, operand, type);
  Instruction narrowing;
  narrowing.d = operand_at(Base::frame, scratch_offset_);
  narrowing.a = register_row(operand.index);
  Form form;
  form.op = Op::cvt;
  form.type = Type::u64;
  form.type2 = Type::u32;
  select_and_emit(source, narrowing, form);
  return narrowing.d;
}

void FunctionDecoder::select_and_emit(const ast::Instruction& source, Instruction instruction, const Form& form) {
  emit(source, instruction, select_handlers(form));
}

void FunctionDecoder::emit(const ast::Instruction& source, Instruction instruction, HandlerPair handlers) {
  if (handlers.by_isa[0] == nullptr || handlers.by_isa[1] == nullptr) {
    fail(source, "this combination of types and modifiers is not executed by the CPU driver");
  }
  instruction.handler[0] = handlers.by_isa[0];
  instruction.handler[1] = handlers.by_isa[1];
  instruction.line = source.line;
  instruction.text = static_cast<std::uint8_t>(std::min(record_.text, 255U));
  if (source.guard != ast::kNone) {
    instruction.guard = register_offsets_[source.guard] | (source.guard_is_negated ? kGuardNegated : 0);
  }
  program_.code.push_back(instruction);
}

// Labels are looked up from the branch's scope outwards: inline assembly brings its own in braces.
void FunctionDecoder::resolve_branches() {
  std::unordered_multimap<std::string_view, const ast::Label*> labels;
  for (const ast::Label& label : ast_.labels) labels.emplace(label.name, &label);
  for (const auto& [pc, index] : branches_) {
    const ast::Instruction& source = ast_.instructions[index];
    const std::string_view name = source.operands[0].name;
    const ast::Label* found = nullptr;
    for (std::uint32_t scope = source.scope;; scope = ast_.scope_parents[scope]) {
      const auto [first, last] = labels.equal_range(name);
      for (auto label = first; label != last; ++label) {
        if (label->second->scope == scope) found = label->second;
      }
      if (found != nullptr || scope == 0) break;
    }
    if (found == nullptr) fail(source, "there is no label '" + std::string(name) + "'");
    program_.code[pc].imm = pc_of_[found->position];
  }
}

}  // namespace mpsshim::ptx
