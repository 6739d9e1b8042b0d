// SPDX-License-Identifier: Apache-2.0
//
// The functions of the device runtime, by name. nvcc calls them "__cudaCDP2" + name, PTX of other makers "cuda" + name
// (CUDA Programming Guide, "Device-side Launch from PTX"); "_ptsz" behind it says that the NULL stream is the thread's,
// which is the same here.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "broker/cpudriver/ptx/program.hpp"

namespace mpsshim::ptx {

enum class RuntimeCall : std::uint8_t {
  device_get_attribute,
  device_get_cache_config,
  device_get_limit,
  event_create,
  event_destroy,
  event_record,
  free,
  function_get_attributes,
  get_device,
  get_device_count,
  get_error_name,
  get_error_string,
  get_last_error,
  get_parameter_buffer,
  get_parameter_buffer_v2,
  launch,
  launch_v2,
  malloc,
  memcpy,
  memcpy_2d,
  memcpy_3d,
  memset,
  memset_2d,
  memset_3d,
  occupancy,
  peek_at_last_error,
  runtime_version,
  stream_create,
  stream_destroy,
  stream_wait,
};

struct RuntimeFunction {
  RuntimeCall call{};
  std::string_view bytes;  // of what it returns, then of its parameters; one character each: see the table
};

[[nodiscard]] std::optional<RuntimeFunction> find_runtime_function(std::string_view name);
// `returns` and `parameters` are those of a declaration in a text.
[[nodiscard]] bool fits(const RuntimeFunction& function, const std::vector<Slot>& returns, const std::vector<Slot>& parameters);

}  // namespace mpsshim::ptx
