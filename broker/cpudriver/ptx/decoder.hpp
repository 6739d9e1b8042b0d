// SPDX-License-Identifier: Apache-2.0
//
// Turns one parsed function into instructions, frame layout and call sites. Throws LoadError with the line for
// whatever it cannot decode exactly. One thread; the Program grows function by function.
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "broker/cpudriver/ptx/ast.hpp"
#include "broker/cpudriver/ptx/image.hpp"
#include "broker/cpudriver/ptx/opcodes.hpp"
#include "broker/cpudriver/ptx/program.hpp"

namespace mpsshim::ptx {

// Immediates and symbol addresses as rows; shared by all functions of an image.
class RowPool {
 public:
  explicit RowPool(Program& program) : program_(program) {}
  [[nodiscard]] std::uint32_t constant(std::uint64_t value, std::uint32_t lane_bytes);
  [[nodiscard]] std::uint32_t symbol(std::uint32_t global, std::int64_t addend);
  void finish();  // Sets Program::constant_rows.

 private:
  Program& program_;
  std::vector<std::uint32_t> words_;
  std::unordered_map<std::uint64_t, std::uint32_t> narrow_;
  std::unordered_map<std::uint64_t, std::uint32_t> wide_;
  std::unordered_map<std::uint64_t, std::unordered_map<std::int64_t, std::uint32_t>> symbols_;
};

class FunctionDecoder {
 public:
  FunctionDecoder(const Image& image, RowPool& pool, Program& program, std::uint32_t function);
  void decode();

 private:
  struct Address {
    std::uint32_t base = kNoOperand;
    std::int64_t offset = 0;
    bool is_wide = true;
    Space space = Space::none;  // Known from the variable named.
    ParameterKind parameter = ParameterKind::none;
    Slot slot;
  };
  // decoder.cpp: frame, statements, common shapes
  void lay_out_frame();
  void lay_out_slots(std::uint32_t& offset);
  void decode_instruction(const ast::Instruction& source);
  void parse_modifiers(const ast::Instruction& source, const OpcodeRow& row, Form& form) const;
  [[nodiscard]] bool rounds_by_default(const Form& form) const;
  void decode_plain(const ast::Instruction& source, const OpcodeRow& row, const Form& form);
  std::uint32_t conversion_source(const ast::Instruction& source, const ast::Operand& operand, Type type);
  void emit(const ast::Instruction& source, Instruction instruction, HandlerPair handlers);
  void select_and_emit(const ast::Instruction& source, Instruction instruction, const Form& form);
  void resolve_branches();
  // decode_operands.cpp
  std::uint32_t destination(const ast::Instruction& source, const ast::Operand& operand, Type type) const;
  std::uint32_t operand_row(const ast::Instruction& source, const ast::Operand& operand, Type type);
  std::uint32_t literal_row(const ast::Instruction& source, const ast::Operand& operand, Type type);
  std::uint32_t symbol_row(const ast::Instruction& source, const ast::Operand& operand, Type type);
  std::uint32_t predicate_row(const ast::Instruction& source, const ast::Operand& operand) const;
  std::uint32_t register_row(std::uint32_t index) const { return operand_at(Base::frame, register_offsets_[index]); }
  Address address(const ast::Instruction& source, const ast::Operand& operand);
  Address variable_address(const ast::Instruction& source, const ast::Operand& operand, std::int64_t offset);
  Symbol symbol_of(const ast::Instruction& source, const ast::Operand& operand) const;
  void note_escape(Symbol symbol);
  std::uint32_t list_of(const ast::Instruction& source, const ast::Operand& vector, Type type, bool is_destination);
  // decode_memory.cpp
  void decode_load_store(const ast::Instruction& source, Form form);
  void decode_atomic(const ast::Instruction& source, const Form& form);
  void decode_move(const ast::Instruction& source, const Form& form);
  void decode_pack(const ast::Instruction& source, const Form& form, bool is_pack);
  bool decode_special_move(const ast::Instruction& source, const Form& form);
  void decode_cvta(const ast::Instruction& source, Form form);
  void decode_isspacep(const ast::Instruction& source, const Form& form);
  // decode_control.cpp
  void decode_compare(const ast::Instruction& source, const Form& form);
  void decode_collective(const ast::Instruction& source, const Form& form);
  void decode_barrier(const ast::Instruction& source, const Form& form);
  void decode_branch(const ast::Instruction& source, const Form& form);
  void decode_call(const ast::Instruction& source, Form form);
  Slot argument_slot(const ast::Instruction& source, const ast::Operand& operand) const;

  [[noreturn]] void fail(const ast::Instruction& source, const std::string& text) const;
  void need_operands(const ast::Instruction& source, std::size_t least, std::size_t most) const;

  const Image& image_;
  RowPool& pool_;
  Program& program_;
  const FunctionRecord& record_;
  const ast::Function& ast_;
  Function& function_;
  std::uint32_t scratch_offset_ = 0;  // A row of 32-bit lanes for use within one PTX instruction.
  std::vector<std::uint32_t> register_offsets_;
  std::vector<Slot> variable_slots_;                               // Per AST variable: .param ones of functions and bodies.
  std::vector<std::uint32_t> variable_locals_;                     // Per AST variable: offset of .local ones; entry .param ones too.
  std::vector<std::uint32_t> pc_of_;                               // Per AST instruction.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> branches_;  // (pc, AST instruction)
};

}  // namespace mpsshim::ptx
