// SPDX-License-Identifier: Apache-2.0
//
// What a cubin says about its kernels, for callers that have no driver to ask (cuFuncGetParamInfo): argument layouts,
// launch bounds, shared memory; and whether the image has variables that a program can change.
// Not trusted: records that do not fit are passed over, absurd numbers are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mpsshim::image {

struct KernelParameter {
  std::uint32_t offset = 0;
  std::uint32_t size = 0;
};

struct KernelLayout {
  std::string name;
  std::vector<KernelParameter> parameters;  // in order
  std::uint32_t parameter_bytes = 0;
  std::uint32_t static_shared_bytes = 0;
  std::uint32_t max_threads[3] = {0, 0, 0};  // __launch_bounds__; 0: none given
  bool prints = false;                       // it, or what it calls, calls printf()
  bool uses_device_heap = false;             // likewise malloc()
};

// A variable of the program, as cuModuleGetGlobal finds it.
struct Variable {
  std::string name;
  bool starts_as_zeroes = false;
  std::uint32_t section = 0;  // of the image's file: what is in one is placed as one; 0: not known, nor are the following
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

struct CubinInfo {
  std::vector<KernelLayout> kernels;
  std::vector<Variable> variables;  // all that make has_writable_globals true; empty if the image's symbols were stripped
  // __device__, __managed__ or __constant__ variables of the program. Texts that the compiler made (format strings,
  // assertion texts) and its tables do not count: nobody can write to them.
  bool has_writable_globals = false;
  bool uses_device_heap = false;         // some code of it calls malloc()
  bool all_may_use_device_heap = false;  // by which kernel is not known
  // Some code or variable of it has the address of a function of the image, as the driver has placed it: kernels may have left it in memory.
  // Says yes for any address of one beyond its own section.
  bool takes_code_addresses = false;
  // Some kernel or function of it has atomic operations that exclude the host's: scope .sys. Says yes for machine code that is not known.
  bool adds_for_system = false;
  // Its code has some by itself, to do more than call: what kernels leave in memory may be one. Else they are in variables alone, if at all.
  bool code_takes_addresses = false;
  bool has_references = false;  // texture or surface references, which programs bind in the module
};

// Empty if it is not a cubin.
[[nodiscard]] std::optional<CubinInfo> read_cubin(std::span<const std::byte> cubin);

// A variable that nvcc made for a text, or a table of its mathematical functions (sine and cosine of large arguments), in cubins and PTX alike.
[[nodiscard]] bool is_compiler_text(std::string_view variable_name);

}  // namespace mpsshim::image
