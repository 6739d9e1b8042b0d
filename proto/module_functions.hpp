// SPDX-License-Identifier: Apache-2.0
// What the reply to a successful ModuleLoad says behind its structure: the module's functions, one entry after another, as many as fit. The
// client finds them by name without asking again, and takes ids for them with FunctionBind, whose `number` counts these entries.
// An entry: this structure, {u32 offset, u32 size} for each parameter, the name, padding to 8. Values are the executor's; the client trusts
// them as far as FunctionLookup's reply, and checks that entries lie within the reply.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mpsshim::proto {

struct ModuleFunction {
  std::uint32_t entry_bytes = 0;  // to the next one
  std::uint32_t name_bytes = 0;   // without terminator
  std::uint32_t parameter_count = 0;
  std::uint32_t parameter_bytes = 0;  // end of the last parameter
  std::int32_t attribute[16] = {};    // cuFuncGetAttribute 0..15
  std::uint32_t attribute_valid = 0;  // bit i: attribute i was answered
  std::uint32_t reserved = 0;
};
static_assert(sizeof(ModuleFunction) == 88);

inline constexpr std::size_t kParameterEntryBytes = 8;
constexpr std::size_t module_function_bytes(std::size_t parameters, std::size_t name_bytes) {
  return (sizeof(ModuleFunction) + parameters * kParameterEntryBytes + name_bytes + 7) / 8 * 8;
}

}  // namespace mpsshim::proto
