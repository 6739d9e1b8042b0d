// SPDX-License-Identifier: Apache-2.0
//
// Decoder: comparisons, collectives, barriers, branches and calls.
#include "broker/cpudriver/ptx/barrier.hpp"
#include "broker/cpudriver/ptx/decoder.hpp"

namespace mpsshim::ptx {

// setp.cmp{.bool}.type p{|q}, a, b{, {!}c}; set.cmp{.bool}.dtype.stype d, a, b{, {!}c}
void FunctionDecoder::decode_compare(const ast::Instruction& source, const Form& form) {
  const bool combines = form.has(Mod::and_) || form.has(Mod::or_) || form.has(Mod::xor_);
  const std::size_t count = combines ? 4 : 3;
  need_operands(source, count, count);
  const ast::Operand& target = source.operands[0];
  Instruction instruction;
  if (form.op == Op::set) {
    instruction.d = destination(source, target, form.type2);
  } else {
    if (target.kind != ast::OperandKind::sink) instruction.d = destination(source, target, Type::pred);
    if (target.second != ast::kNone) {
      if (ast_.registers[target.second].type != Type::pred) fail(source, "a predicate is expected after '|'");
      instruction.e = register_row(target.second);
    }
  }
  instruction.a = operand_row(source, source.operands[1], form.type);
  instruction.b = operand_row(source, source.operands[2], form.type);
  if (combines) {
    instruction.imm = form.has(Mod::and_) ? 1 : form.has(Mod::or_) ? 2 : 3;
    instruction.c = predicate_row(source, source.operands[3]);
    if (source.operands[3].is_negated) instruction.flags = kFlagNegateC;
  }
  select_and_emit(source, instruction, form);
}

// shfl d{|p}, a, b, c, mask; vote d, {!}p, mask; match d{|p}, a, mask; redux d, a, mask
void FunctionDecoder::decode_collective(const ast::Instruction& source, const Form& form) {
  const std::size_t count = form.op == Op::shfl ? 5 : 3;
  need_operands(source, count, count);
  const ast::Operand& target = source.operands[0];
  const ast::Operand& value = source.operands[1];
  const bool is_vote = form.op == Op::vote;
  const Type result = is_vote ? (form.has(Mod::ballot) ? Type::b32 : Type::pred) : form.op == Op::match ? Type::b32 : form.type;
  Instruction instruction;
  instruction.aux = kNoOperand;
  if (target.kind != ast::OperandKind::sink)
    instruction.d = destination(source, target, result);
  else if (is_vote || form.op == Op::redux)
    fail(source, "a destination is expected");
  if (target.second != ast::kNone) {
    if (ast_.registers[target.second].type != Type::pred) fail(source, "a predicate is expected after '|'");
    instruction.aux = register_row(target.second);
  }
  if (is_vote) {
    instruction.a = predicate_row(source, value);
    if (value.is_negated) instruction.flags = kFlagNegateA;
  } else {
    instruction.a = operand_row(source, value, form.type);
  }
  if (form.op == Op::shfl) {
    instruction.b = operand_row(source, source.operands[2], Type::b32);
    instruction.c = operand_row(source, source.operands[3], Type::b32);
  }
  instruction.e = operand_row(source, source.operands.back(), Type::b32);
  select_and_emit(source, instruction, form);
}

// bar.sync a{, b}; bar.arrive a, b; bar.red.op d, a{, b}, {!}c; bar.warp.sync mask
void FunctionDecoder::decode_barrier(const ast::Instruction& source, const Form& form) {
  Instruction instruction;
  if (form.has(Mod::warp)) {
    need_operands(source, 1, 1);
    instruction.aux = kNoOperand;
    instruction.e = operand_row(source, source.operands[0], Type::b32);
    return select_and_emit(source, instruction, form);
  }
  if (form.has(Mod::cluster)) {
    if (form.has(Mod::arrive) == form.has(Mod::wait)) fail(source, "arrive or wait is expected");
    need_operands(source, 0, 0);
    const Handler handler = form.has(Mod::arrive) ? cluster_arrive : cluster_wait;
    return emit(source, instruction, HandlerPair{{handler, handler}});
  }
  if (form.has(Mod::wait) || form.has(Mod::acquire) || form.has(Mod::release) || form.has(Mod::relaxed)) fail(source, "of clusters' barriers only");
  const bool reduces = form.has(Mod::red);
  const bool arrives = form.has(Mod::arrive);
  if (!reduces && !arrives && !form.has(Mod::sync)) fail(source, "sync, arrive or red is expected");
  std::size_t next = 0;
  BarrierKind kind = arrives ? BarrierKind::arrive : BarrierKind::sync;
  if (reduces) {
    need_operands(source, 3, 4);
    const bool counts = form.has(Mod::popc);
    kind = counts ? BarrierKind::red_popc : form.has(Mod::and_) ? BarrierKind::red_and : BarrierKind::red_or;
    instruction.d = destination(source, source.operands[next++], counts ? Type::u32 : Type::pred);
    const ast::Operand& predicate = source.operands.back();
    instruction.c = predicate_row(source, predicate);
    if (predicate.is_negated) instruction.flags = kFlagNegateC;
  } else {
    need_operands(source, arrives ? 2 : 1, 2);
  }
  const std::size_t end = source.operands.size() - (reduces ? 1 : 0);
  instruction.a = operand_row(source, source.operands[next++], Type::u32);
  if (next < end) instruction.b = operand_row(source, source.operands[next], Type::u32);
  instruction.imm = static_cast<std::int64_t>(kind);
  select_and_emit(source, instruction, form);
}

void FunctionDecoder::decode_branch(const ast::Instruction& source, const Form& form) {
  need_operands(source, 1, 1);
  if (source.operands[0].kind != ast::OperandKind::symbol) fail(source, "a label is expected");
  branches_.emplace_back(static_cast<std::uint32_t>(program_.code.size()), static_cast<std::uint32_t>(pc_of_.size() - 1));
  select_and_emit(source, {}, form);
}

Slot FunctionDecoder::argument_slot(const ast::Instruction& source, const ast::Operand& operand) const {
  const bool is_slot =
      operand.kind == ast::OperandKind::variable && ast_.variables[operand.index].space == Space::param && variable_slots_[operand.index].stride != 0;
  if (!is_slot) fail(source, "arguments are passed in .param variables only");
  return variable_slots_[operand.index];
}

// call {(returns),} target {, (arguments)} {, prototype}
void FunctionDecoder::decode_call(const ast::Instruction& source, Form form) {
  std::size_t next = 0;
  const auto& operands = source.operands;
  CallSite site;
  const auto take_group = [&](std::vector<Slot>& slots) {
    if (next >= operands.size() || operands[next].kind != ast::OperandKind::group) return;
    for (const ast::Operand& element : operands[next].elements) slots.push_back(argument_slot(source, element));
    ++next;
  };
  take_group(site.returns);
  if (next >= operands.size()) fail(source, "a function is expected");
  const ast::Operand& target = operands[next++];
  take_group(site.parameters);
  Instruction instruction;
  instruction.aux = static_cast<std::uint32_t>(program_.calls.size());
  if (target.kind == ast::OperandKind::reg) {
    instruction.a = operand_row(source, target, Type::u64);
    form.type = Type::b64;  // Tells select_control that it is indirect.
  } else {
    const Symbol symbol = symbol_of(source, target);
    if (symbol.kind != SymbolKind::function) fail(source, "'" + std::string(target.name) + "' is no function");
    site.function = symbol.index;
    const Function& callee = program_.functions[symbol.index];
    const auto matches = [](const std::vector<Slot>& a, const std::vector<Slot>& b) {
      if (a.size() != b.size()) return false;
      for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i].size != b[i].size) return false;
      }
      return true;
    };
    if (image_.functions()[symbol.index].declaration->is_entry) fail(source, "a kernel cannot be called");
    if (!matches(site.parameters, callee.parameters) || !matches(site.returns, callee.returns))
      fail(source, "the arguments do not fit '" + callee.name + "'");
  }
  program_.calls.push_back(std::move(site));
  select_and_emit(source, instruction, form);
}

}  // namespace mpsshim::ptx
