// SPDX-License-Identifier: Apache-2.0
// Kernel launches (CUDA Driver API manual, "Execution Control").
#include <algorithm>
#include <climits>
#include <cstring>
#include <vector>

#include "gen/api_declarations.hpp"
#include "interposer/entry.hpp"
#include "interposer/forward/events.hpp"
#include "interposer/forward/graphs/capture.hpp"
#include "interposer/forward/green_contexts.hpp"
#include "interposer/forward/launch.hpp"
#include "interposer/forward/launch_attributes.hpp"
#include "interposer/forward/occupancy.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::forward {

namespace {

std::uint32_t limit_of(const proto::DeviceFacts* facts, CUdevice_attribute attribute, std::uint32_t fallback) {
  int value = 0;
  if (facts == nullptr || device_attribute(*facts, attribute, value) != CUDA_SUCCESS || value <= 0) return fallback;
  return static_cast<std::uint32_t>(value);
}

}  // namespace

// A session has one device; its limits are those that every device since compute capability 3.0 has, unless the facts say otherwise.
const LaunchLimits& launch_limits() {
  static const LaunchLimits limits = [] {
    const proto::DeviceFacts* facts = device_facts(session_device());
    return LaunchLimits{limit_of(facts, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, INT_MAX),    limit_of(facts, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535),
                        limit_of(facts, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535),      limit_of(facts, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024),
                        limit_of(facts, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024),      limit_of(facts, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
                        limit_of(facts, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024)};
  }();
  return limits;
}

}  // namespace mpsshim::interposer::forward

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

// A cooperative grid must be on the device as a whole.
CUresult check_cooperative(Function& function, const LaunchShape& shape, const Stream& stream) {
  int blocks_per_sm = 0;
  const auto block_size = static_cast<int>(shape.block_x * shape.block_y * shape.block_z);
  if (const CUresult error = max_active_blocks(function, block_size, shape.shared_bytes, 0, blocks_per_sm); error != CUDA_SUCCESS) return error;
  const GreenObject* green = GreenContexts::instance().resolve(to_handle<CUgreenCtx>(stream.green));
  const std::uint64_t sms =
      green != nullptr ? multiprocessors_of(green->told) : limit_of(device_facts(session_device()), CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1);
  const std::uint64_t blocks = static_cast<std::uint64_t>(shape.grid_x) * shape.grid_y * shape.grid_z;
  return blocks <= sms * static_cast<std::uint64_t>(blocks_per_sm) ? CUDA_SUCCESS : CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

// Whether a block of this shape finds registers enough. If it does and yet has more threads than the function allows, it is against its
// __launch_bounds__, for which the driver has another error.
bool has_registers_for(const Function& function, const LaunchShape& shape) {
  const std::uint64_t available = limit_of(device_facts(session_device()), CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536);
  const auto registers = static_cast<std::uint64_t>(function.attribute[CU_FUNC_ATTRIBUTE_NUM_REGS].load(std::memory_order_relaxed));
  const std::uint64_t warps = (static_cast<std::uint64_t>(shape.block_x) * shape.block_y * shape.block_z + 31) / 32;
  const std::uint64_t per_warp = (registers * 32 + 255) / 256 * 256;
  return warps * per_warp <= available;
}

inline CUresult post_launch(Function& function, Stream& stream, const LaunchShape& shape, std::span<const CUlaunchAttribute> attributes,
                            proto::Flags<proto::LaunchFlag> flags, const Arguments& arguments) {
  const std::size_t parameter_room = (function.parameter_bytes + 7u) / 8 * 8;
  return post_work<proto::LaunchRecord>(stream, parameter_room + attributes.size_bytes(), [&](proto::LaunchRecord& record, std::byte* trailing) {
    record = launch_record(function, shape, attributes.size(), flags);
    copy_arguments(arguments, {function.parameters, function.parameter_count}, function.parameter_bytes, trailing);
    if (!attributes.empty()) std::memcpy(trailing + parameter_room, attributes.data(), attributes.size_bytes());
  });
}

// Arguments that lie in managed memory would be touched under the channel's lock, which answering the touch takes: so they are read before.
[[gnu::noinline]] CUresult post_launch_of_copies(Function& function, Stream& stream, const LaunchShape& shape,
                                                 std::span<const CUlaunchAttribute> attributes, proto::Flags<proto::LaunchFlag> flags,
                                                 const Arguments& arguments) {
  std::vector<std::byte> buffer(function.parameter_bytes);
  copy_arguments(arguments, {function.parameters, function.parameter_count}, function.parameter_bytes, buffer.data());
  const std::vector<CUlaunchAttribute> own(attributes.begin(), attributes.end());
  return post_launch(function, stream, shape, own, flags, Arguments{nullptr, buffer.data(), function.parameter_bytes});
}

// What the driver would refuse when the launch is issued, long after the program was told that it is accepted.
CUresult check_attributes(const Function& function, const LaunchShape& shape, std::span<const CUlaunchAttribute> attributes) {
  const CUresult error = check_windows(attributes);
  return error == CUDA_SUCCESS ? check_cluster(function, shape, attributes) : error;
}

CUresult launch(CUfunction handle, const LaunchShape& shape, CUstream stream_handle, std::span<const CUlaunchAttribute> attributes,
                proto::Flags<proto::LaunchFlag> flags, void** kernel_params, void** extra) {
  if (const CUresult error = begin_on(stream_handle); error != CUDA_SUCCESS) [[unlikely]]
    return error;
  Function* function = Functions::instance().resolve(handle);
  if (function == nullptr) [[unlikely]]
    return CUDA_ERROR_INVALID_HANDLE;
  Stream* stream = Streams::instance().resolve(stream_handle);
  if (stream == nullptr) [[unlikely]]
    return Streams::instance().missing(stream_handle);
  const CUresult refused = check_launch(shape, launch_limits(), function->max_threads_per_block.load(std::memory_order_relaxed),
                                        function->max_dynamic_shared_bytes.load(std::memory_order_relaxed));
  if (refused != CUDA_SUCCESS) [[unlikely]] {
    const bool too_large = refused == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    return too_large && has_registers_for(*function, shape) ? CUDA_ERROR_INVALID_VALUE : refused;
  }
  Arguments arguments;
  if (const CUresult error = find_arguments(kernel_params, extra, function->parameter_bytes, arguments); error != CUDA_SUCCESS) [[unlikely]] {
    return error;
  }
  if (flags.has(proto::LaunchFlag::cooperative)) {
    if (const CUresult error = check_cooperative(*function, shape, *stream); error != CUDA_SUCCESS) return error;
  }
  if (function->has_launch_attributes.load(std::memory_order_relaxed) | stream->has_launch_attributes.load(std::memory_order_relaxed)) [[unlikely]] {
    const std::vector<CUlaunchAttribute> all = with_defaults(*function, *stream, attributes);
    if (const CUresult error = check_attributes(*function, shape, all); error != CUDA_SUCCESS) return error;
    return post_launch_of_copies(*function, *stream, shape, all, flags, arguments);
  }
  if (!attributes.empty()) {
    if (const CUresult error = check_attributes(*function, shape, attributes); error != CUDA_SUCCESS) return error;
  }
  if (ManagedMemory::in_use()) [[unlikely]]
    return post_launch_of_copies(*function, *stream, shape, attributes, flags, arguments);
  return post_launch(*function, *stream, shape, attributes, flags, arguments);
}

LaunchShape shape_of(const CUlaunchConfig& config) {
  return {config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes};
}

const CUlaunchAttribute* event_attribute(std::span<const CUlaunchAttribute> attributes) {
  const auto found = std::find_if(attributes.begin(), attributes.end(), [](const CUlaunchAttribute& attribute) {
    return attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT || attribute.id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
  });
  return found != attributes.end() ? &*found : nullptr;
}

// An event that the kernel itself triggers, or that comes when all its blocks have begun, is recorded behind the kernel: CUDA promises that
// it does not come earlier than that trigger, and the end of the kernel is one.
CUresult launch_and_record(const CUlaunchConfig& config, CUfunction function, CUstream stream, const CUlaunchAttribute& attribute,
                           proto::Flags<proto::LaunchFlag> flags, void** kernel_params, void** extra) {
  const bool is_programmatic = attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
  const CUevent event = is_programmatic ? attribute.value.programmaticEvent.event : attribute.value.launchCompletionEvent.event;
  std::vector<CUlaunchAttribute> others;
  for (const CUlaunchAttribute& each : std::span(config.attrs, config.numAttrs)) {
    if (&each == &attribute) continue;
    if (each.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT || each.id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
      return unsupported(ApiId::cuLaunchKernelEx);  // two events behind one launch
    }
    others.push_back(each);
  }
  const Event* known = Events::instance().resolve(event);
  if (known == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if ((known->flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = launch(function, shape_of(config), stream, others, flags, kernel_params, extra); error != CUDA_SUCCESS) return error;
  return api::cuEventRecord(event, stream);
}

}  // namespace

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,
                        unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream, void** kernelParams,
                        void** extra) {
  return launch(f, {gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes}, hStream, {}, {}, kernelParams, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,
                                   unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                   void** kernelParams) {
  return launch(f, {gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes}, hStream, {}, proto::LaunchFlag::cooperative,
                kernelParams, nullptr);
}

// A session has one device, and a list names each device once.
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launchParamsList, unsigned int numDevices, unsigned int flags) {
  constexpr unsigned int kKnownFlags =
      CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC | CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
  if (launchParamsList == nullptr || numDevices != 1 || (flags & ~kKnownFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_LAUNCH_PARAMS& only = launchParamsList[0];
  if (only.hStream == nullptr || only.hStream == CU_STREAM_LEGACY || only.hStream == CU_STREAM_PER_THREAD) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = Streams::instance().resolve(only.hStream);
  if (stream != nullptr && stream->is_captured.load(std::memory_order_relaxed)) return Captures::instance().refuse(*stream);  // no node is like it
  return launch(only.function, {only.gridDimX, only.gridDimY, only.gridDimZ, only.blockDimX, only.blockDimY, only.blockDimZ, only.sharedMemBytes},
                only.hStream, {}, proto::LaunchFlag::cooperative | proto::LaunchFlag::multi_device, only.kernelParams, nullptr);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams, void** extra) {
  if (config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  proto::Flags<proto::LaunchFlag> flags{};
  const std::span<const CUlaunchAttribute> attributes(config->attrs, config->numAttrs);
  for (const CUlaunchAttribute& attribute : attributes) {
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && attribute.value.cooperative != 0) flags.set(proto::LaunchFlag::cooperative);
  }
  CUstream stream = config->hStream;
  if (stream == nullptr && PerThreadDefaultStream::active()) stream = CU_STREAM_PER_THREAD;
  if (const CUlaunchAttribute* event = event_attribute(attributes)) return launch_and_record(*config, f, stream, *event, flags, kernelParams, extra);
  if (has_idle_attributes(attributes)) return launch(f, shape_of(*config), stream, without_idle_attributes(attributes), flags, kernelParams, extra);
  return launch(f, shape_of(*config), stream, attributes, flags, kernelParams, extra);
}

}  // namespace mpsshim::interposer::api
