// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/ptx/device_runtime_names.hpp"

namespace mpsshim::ptx {
namespace {

constexpr std::string_view kRuntimePrefix = "__cudaCDP2";
constexpr std::string_view kOtherPrefix = "cuda";
constexpr std::string_view kPerThread = "_ptsz";

// The return value, then the parameters. 4 and 8: that many bytes; d: dim3 (12), x: cudaExtent (24), p: cudaPitchedPtr (32).
struct RuntimeRow {
  std::string_view name;
  RuntimeCall call;
  std::string_view bytes;
};

constexpr RuntimeRow kRuntimeRows[] = {
    {"DeviceGetAttribute", RuntimeCall::device_get_attribute, "4844"},
    {"DeviceGetCacheConfig", RuntimeCall::device_get_cache_config, "48"},
    {"DeviceGetLimit", RuntimeCall::device_get_limit, "484"},
    {"EventCreateWithFlags", RuntimeCall::event_create, "484"},
    {"EventDestroy", RuntimeCall::event_destroy, "48"},
    {"EventRecord", RuntimeCall::event_record, "488"},
    {"EventRecordWithFlags", RuntimeCall::event_record, "4884"},
    {"Free", RuntimeCall::free, "48"},
    {"FuncGetAttributes", RuntimeCall::function_get_attributes, "488"},
    {"GetDevice", RuntimeCall::get_device, "48"},
    {"GetDeviceCount", RuntimeCall::get_device_count, "48"},
    {"GetErrorName", RuntimeCall::get_error_name, "84"},
    {"GetErrorString", RuntimeCall::get_error_string, "84"},
    {"GetLastError", RuntimeCall::get_last_error, "4"},
    {"GetParameterBuffer", RuntimeCall::get_parameter_buffer, "888"},
    {"GetParameterBufferV2", RuntimeCall::get_parameter_buffer_v2, "88dd4"},
    {"LaunchDevice", RuntimeCall::launch, "488dd48"},
    {"LaunchDeviceV2", RuntimeCall::launch_v2, "488"},
    {"Malloc", RuntimeCall::malloc, "488"},
    {"MemcpyAsync", RuntimeCall::memcpy, "488848"},
    {"Memcpy2DAsync", RuntimeCall::memcpy_2d, "488888848"},
    {"Memcpy3DAsync", RuntimeCall::memcpy_3d, "488"},
    {"MemsetAsync", RuntimeCall::memset, "48488"},
    {"Memset2DAsync", RuntimeCall::memset_2d, "4884888"},
    {"Memset3DAsync", RuntimeCall::memset_3d, "4p4x8"},
    {"OccupancyMaxActiveBlocksPerMultiprocessor", RuntimeCall::occupancy, "48848"},
    {"OccupancyMaxActiveBlocksPerMultiprocessorWithFlags", RuntimeCall::occupancy, "488484"},
    {"PeekAtLastError", RuntimeCall::peek_at_last_error, "4"},
    {"RuntimeGetVersion", RuntimeCall::runtime_version, "48"},
    {"StreamCreateWithFlags", RuntimeCall::stream_create, "484"},
    {"StreamDestroy", RuntimeCall::stream_destroy, "48"},
    {"StreamWaitEvent", RuntimeCall::stream_wait, "4884"},
};

std::uint32_t bytes_of(char kind) {
  switch (kind) {
    case 'd': return 12;
    case 'x': return 24;
    case 'p': return 32;
    default: return static_cast<std::uint32_t>(kind - '0');
  }
}

}  // namespace

std::optional<RuntimeFunction> find_runtime_function(std::string_view name) {
  const std::string_view prefix = name.starts_with(kRuntimePrefix) ? kRuntimePrefix : kOtherPrefix;
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  if (name.ends_with(kPerThread)) name.remove_suffix(kPerThread.size());
  for (const RuntimeRow& row : kRuntimeRows) {
    if (row.name == name) return RuntimeFunction{row.call, row.bytes};
  }
  return std::nullopt;
}

bool fits(const RuntimeFunction& function, const std::vector<Slot>& returns, const std::vector<Slot>& parameters) {
  const std::string_view bytes = function.bytes;
  if (returns.size() != 1 || returns[0].size != bytes_of(bytes[0]) || parameters.size() != bytes.size() - 1) return false;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].size != bytes_of(bytes[i + 1])) return false;
  }
  return true;
}

}  // namespace mpsshim::ptx
