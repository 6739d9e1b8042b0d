// SPDX-License-Identifier: Apache-2.0
//
// A parsed PTX text: names of registers and scopes are resolved, symbols and labels are not. Views point into the
// text. Made by the Parser, read by the linker and the decoder, dropped after the load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "broker/cpudriver/ptx/types.hpp"

namespace mpsshim::ptx::ast {

inline constexpr std::uint32_t kNone = 0xffffffff;
inline constexpr std::uint32_t kMostRegisters = 255;  // of a thread

enum class OperandKind : std::uint8_t {
  reg,       // index: into Function::registers
  integer,   // value
  float32,   // value: the bits
  float64,   // value: the bits
  symbol,    // name (+ value): variable, function, special register or label
  variable,  // index into Function::variables (+ value)
  address,   // [elements[0] + value]
  vector,    // {elements}
  group,     // (elements), of a call
  sink,      // _
};

struct Operand {
  OperandKind kind = OperandKind::sink;
  bool is_negated = false;  // !p
  std::uint32_t index = 0;
  std::int64_t value = 0;
  std::string_view name;
  std::string_view component;    // x of %tid.x
  std::uint32_t second = kNone;  // dst|pred: the register after the bar
  std::vector<Operand> elements;
};

struct Instruction {
  std::uint32_t line = 0;
  std::uint32_t guard = kNone;  // Predicate register.
  bool guard_is_negated = false;
  std::uint32_t scope = 0;  // Where its labels are looked up first.
  std::string_view opcode;
  std::vector<std::string_view> modifiers;
  std::vector<Operand> operands;
};

// As it stands in the text, without guard and operands: "add.rn.f32".
[[nodiscard]] inline std::string text_of(const Instruction& instruction) {
  std::string text(instruction.opcode);
  for (const std::string_view modifier : instruction.modifiers) text += "." + std::string(modifier);
  return text;
}

struct InitialSymbol {
  std::uint64_t offset = 0;
  std::string_view name;
  std::int64_t addend = 0;
  std::uint32_t line = 0;
};

struct Variable {
  std::string_view name;
  Space space = Space::none;
  Type type = Type::none;
  std::uint32_t line = 0;
  std::uint32_t align = 1;
  std::uint64_t bytes = 0;
  bool is_extern = false;
  bool is_visible = false;
  bool is_weak = false;  // .weak or .common: gives way to another definition of the name
  bool is_managed = false;
  std::uint32_t scope_offset = 0;  // Space param in a body: place among the parameters of its scope.
  std::vector<std::byte> initial;
  std::vector<InitialSymbol> symbols;
};

struct Register {
  Type type = Type::none;
};

struct Label {
  std::string_view name;
  std::uint32_t scope = 0;
  std::uint32_t position = 0;  // Index of the instruction that follows.
};

struct Prototype {
  std::string_view name;
  std::vector<Variable> returns;
  std::vector<Variable> parameters;
};

struct Function {
  std::string_view name;
  std::uint32_t line = 0;
  bool is_entry = false;
  bool is_visible = false;
  bool is_weak = false;
  bool is_extern = false;
  bool has_body = false;
  std::uint32_t max_threads[3] = {0, 0, 0};
  std::uint32_t required_threads[3] = {0, 0, 0};
  std::uint32_t max_registers = 0;     // .maxnreg; 0: none
  std::uint32_t returns_count = 0;     // variables: first the returns,
  std::uint32_t parameters_count = 0;  // then the parameters, then the body's.
  std::vector<Variable> variables;
  std::vector<Register> registers;
  std::vector<std::uint32_t> scope_parents;  // [0] is the body, its own parent.
  std::vector<Label> labels;
  std::vector<Prototype> prototypes;
  std::vector<Instruction> instructions;
};

struct Text {
  std::uint32_t index = 0;
  std::uint32_t version = 0;
  std::uint32_t target = 0;
  std::vector<Variable> variables;
  std::vector<Function> functions;
};

}  // namespace mpsshim::ptx::ast
