// SPDX-License-Identifier: Apache-2.0
//
// Decoded code. Every operand is a row of 32 lanes, found as base[top two bits] + byte offset:
//   frame     registers and parameter variables of the running function
//   constants immediates, broadcast once per image
//   special   %tid and kin, filled per warp
//   symbols   addresses of globals, broadcast per ModuleInstance
// Rows of 8- to 32-bit values have 4 bytes a lane, rows of 64-bit values 8. A predicate is one 32-bit mask.
// Immutable after compile(); shared by all launches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "broker/cpudriver/ptx/module.hpp"
#include "broker/cpudriver/ptx/special_rows.hpp"
#include "broker/cpudriver/ptx/types.hpp"

namespace mpsshim::ptx {

inline constexpr std::uint32_t kLanes = 32;
inline constexpr std::uint32_t kAllLanes = 0xffffffff;
inline constexpr std::uint32_t kNoOperand = 0xffffffff;

enum class Base : std::uint32_t { frame, constants, special, symbols };

[[nodiscard]] constexpr std::uint32_t operand_at(Base base, std::uint32_t offset) { return static_cast<std::uint32_t>(base) << 30 | offset; }

struct Warp;
struct Instruction;

// What the warp's loop does next: go on at warp.pc, or leave (blocked, yielding, finished or failed).
enum class Flow : std::uint8_t { next, stop };
using Handler = Flow (*)(Warp&, const Instruction&);

// Handlers exist for two instruction sets; an Engine runs one column.
enum class Isa : std::uint8_t { baseline, v3 };
struct HandlerPair {
  Handler by_isa[2] = {nullptr, nullptr};
};

struct Instruction {
  Handler handler[2] = {nullptr, nullptr};
  std::uint32_t d = kNoOperand;
  std::uint32_t a = kNoOperand;
  std::uint32_t b = kNoOperand;
  std::uint32_t c = kNoOperand;
  std::uint32_t e = kNoOperand;      // Second destination, or fourth source.
  std::uint32_t guard = kNoOperand;  // Frame offset of the predicate; top bit: negated.
  std::int64_t imm = 0;              // Address offset, branch target, table index...
  std::uint32_t line = 0;
  std::uint32_t aux = 0;  // Index into Program::lists or ::calls.
  Space space = Space::none;
  std::uint8_t count = 1;  // Vector elements.
  std::uint8_t flags = 0;  // kFlag...
  std::uint8_t text = 0;
};
static_assert(sizeof(Instruction) == 64, "one cache line an instruction");

inline constexpr std::uint8_t kFlagWideAddress = 1;  // The address row holds 64-bit values.
inline constexpr std::uint8_t kFlagNegateC = 2;      // Predicate source c is negated.
inline constexpr std::uint8_t kFlagNegateA = 4;
inline constexpr std::uint8_t kFlagNegateB = 8;
inline constexpr std::uint32_t kGuardNegated = 0x80000000;

// A parameter or return value: bytes of each lane, contiguous per lane.
struct Slot {
  std::uint32_t offset = 0;  // In the frame; lane i begins at offset + i * stride.
  std::uint32_t stride = 0;
  std::uint32_t size = 0;
};

enum class Builtin : std::uint8_t { none, print, allocate, release, assert_fail, set_condition, device_runtime };
enum class RuntimeCall : std::uint8_t;  // device_runtime_names.hpp

struct Function {
  std::string name;
  std::uint32_t entry_pc = 0;
  std::uint32_t frame_bytes = 0;
  std::uint32_t local_bytes = 0;
  std::uint32_t shared_bytes = 0;  // Entries: all static shared memory.
  std::uint32_t dynamic_shared_align = 16;
  std::uint32_t registers = 16;  // An estimate; for KernelInfo.
  std::vector<Slot> returns;
  std::vector<Slot> parameters;
  Builtin builtin = Builtin::none;
  RuntimeCall runtime_call{};  // of Builtin::device_runtime
};

struct CallSite {
  std::uint32_t function = 0;  // Direct calls.
  std::vector<Slot> returns;   // Variables of the caller.
  std::vector<Slot> parameters;
};

// Function addresses as kernels see them: no mapped address, so that loads through them fault.
inline constexpr std::uint64_t kFunctionHandleBase = 0x00f0'0000'0000'0000;

struct SymbolRow {
  std::uint32_t global = 0;
  std::int64_t addend = 0;
};

struct Program {
  std::vector<KernelInfo> kernels;
  std::vector<std::uint32_t> kernel_functions;  // Per kernel: index into functions.
  std::vector<GlobalInfo> globals;
  std::vector<Function> functions;
  std::vector<Instruction> code;
  std::vector<std::uint32_t> lists;  // Operands of vectors.
  std::vector<CallSite> calls;
  std::vector<std::uint64_t> constants;  // The pool's storage; rows begin at the first multiple of 64 in it.
  std::byte* constant_rows = nullptr;
  bool uses_device_runtime = false;
  bool uses_reserved_shared = false;   // cooperative groups' memory behind the kernel's own: %reserved_smem_offset_*
  std::vector<SymbolRow> symbol_rows;  // Each is a row of 64-bit lanes in the instance's pool.
};

struct Bindings {
  std::vector<std::uint64_t> storage;  // One row of 32 lanes for each of Program::symbol_rows.
};
[[nodiscard]] inline const std::byte* symbol_rows(const Bindings& bindings) {
  const auto address = reinterpret_cast<std::uint64_t>(bindings.storage.data());
  return reinterpret_cast<const std::byte*>((address + 63) & ~std::uint64_t{63});
}

}  // namespace mpsshim::ptx
