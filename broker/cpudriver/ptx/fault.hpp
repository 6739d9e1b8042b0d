// SPDX-License-Identifier: Apache-2.0
//
// What can go wrong: an image that does not load (Error) and a launch that does not end well (Fault).
// Both carry the number of the CUresult that the driver API returns for them, so that a caller can cast.
#pragma once

#include <cstdint>
#include <string>

namespace mpsshim::ptx {

// Numbers are CUresult's (CUDA Driver API manual, "Data types used by CUDA driver").
enum class ErrorCode : int {
  none = 0,
  out_of_memory = 2,
  invalid_ptx = 218,          // Syntax, an unknown opcode or modifier, a type that does not fit.
  unsupported_version = 222,  // The text's .version is newer than this engine.
  not_found = 500,            // An .extern symbol that no text of the image defines.
};

struct Error {
  ErrorCode code = ErrorCode::none;
  std::size_t text_index = 0;  // Which of the texts given to compile().
  std::uint32_t line = 0;      // 1-based line in that text; 0 where no line applies.
  std::string text;            // One sentence: what, where, remedy.
};

// Numbers are CUresult's, as above.
enum class Fault : int {
  none = 0,
  invalid_value = 1,  // Grid, block or parameters do not fit the kernel; nothing ran.
  out_of_memory = 2,  // The state of one block could not be allocated.
  illegal_address = 700,
  out_of_resources = 701,  // Too many threads or too much shared memory for the kernel; nothing ran.
  device_assert = 710,
  cooperative_too_large = 720,
  stack_error = 714,  // A thread's local memory is used up by calls.
  illegal_instruction = 715,
  misaligned_address = 716,
  invalid_pc = 718,     // A call through a pointer that is no function's.
  launch_failed = 719,  // `trap`.
  cancelled = 999,      // LaunchHooks::cancel was seen set. Not a device fault.
};

// How a launch ended. `text` is empty if `fault` is none, else one sentence for the log.
struct LaunchOutcome {
  Fault fault = Fault::none;
  std::uint64_t address = 0;  // illegal_address, misaligned_address: the address of the lowest guilty lane.
  bool is_write = false;
  std::uint32_t line = 0;  // Line of the guilty instruction in its PTX text.
  std::string kernel;
  std::string text;
  std::uint64_t lane_instructions = 0;  // Executed by this launch: 32 for each instruction of a full warp.
};

}  // namespace mpsshim::ptx
