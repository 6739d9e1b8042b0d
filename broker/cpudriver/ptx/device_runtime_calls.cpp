// SPDX-License-Identifier: Apache-2.0
//
// Calls of the device runtime, lane by lane. What a call returns is the thread's last error, too, unless it is success.
#include <algorithm>
#include <cstring>

#include "broker/cpudriver/ptx/device_runtime.hpp"
#include "broker/cpudriver/ptx/device_runtime_names.hpp"
#include "broker/cpudriver/ptx/device_runtime_structures.hpp"
#include "broker/cpudriver/ptx/launch.hpp"

namespace mpsshim::ptx {
namespace {

using CallError = RuntimeError;

constexpr std::uint64_t kStreamNonBlocking = 1;   // cudaStreamNonBlocking: streams of the device have no NULL stream's barrier
constexpr std::uint64_t kEventDisableTiming = 2;  // cudaEventDisableTiming: nor have events times
constexpr std::uint64_t kDeviceToDevice = 3;      // cudaMemcpyKind
constexpr std::uint64_t kDefaultKind = 4;

// One thread's call.
class RuntimeThread {
 public:
  RuntimeThread(Warp& warp, const CallSite& site, std::uint32_t lane)
      : warp_(warp), site_(site), lane_(lane), launch_(*warp.block->launch), runtime_(*launch_.runtime) {}

  void run(RuntimeCall call) {
    switch (call) {
      case RuntimeCall::get_error_name: return answer(runtime_.text(name_of(static_cast<CallError>(argument(0)))));
      case RuntimeCall::get_error_string: return answer(runtime_.text(describe(static_cast<CallError>(argument(0)))));
      case RuntimeCall::peek_at_last_error: return answer(last_error());
      case RuntimeCall::get_last_error:
        answer(last_error());
        last_error() = 0;
        return;
      case RuntimeCall::get_parameter_buffer: return answer(get_buffer());
      case RuntimeCall::get_parameter_buffer_v2: return answer(prepare_launch());
      default: break;
    }
    const auto error = static_cast<std::uint32_t>(perform(call));
    if (error != 0) last_error() = error;
    answer(error);
  }

  [[nodiscard]] bool has_faulted() const { return has_faulted_; }
  [[nodiscard]] std::uint64_t bad_address() const { return bad_address_; }
  [[nodiscard]] bool was_write() const { return was_write_; }

 private:
  CallError perform(RuntimeCall call) {
    switch (call) {
      case RuntimeCall::device_get_attribute: return get_attribute();
      case RuntimeCall::device_get_limit: return get_limit();
      case RuntimeCall::device_get_cache_config:
      case RuntimeCall::get_device: return store(argument(0), std::uint32_t{0});
      case RuntimeCall::get_device_count: return get_device_count();
      case RuntimeCall::runtime_version: return get_version();
      case RuntimeCall::function_get_attributes: return get_function_attributes();
      case RuntimeCall::occupancy: return get_occupancy();
      case RuntimeCall::stream_create:
        return argument(1) == kStreamNonBlocking ? store(argument(0), runtime_.make_stream()) : CallError::invalid_value;
      case RuntimeCall::stream_destroy: return runtime_.end_stream(argument(0)) ? CallError::none : CallError::invalid_resource_handle;
      // Work runs in the order of the calls, so whatever an event stands for is done when what waits for it begins.
      case RuntimeCall::stream_wait:
        return runtime_.is_stream(argument(0)) && runtime_.is_event(argument(1)) ? CallError::none : CallError::invalid_resource_handle;
      case RuntimeCall::event_create:
        return argument(1) == kEventDisableTiming ? store(argument(0), runtime_.make_event()) : CallError::invalid_value;
      case RuntimeCall::event_record:
        return runtime_.is_event(argument(0)) && runtime_.is_stream(argument(1)) ? CallError::none : CallError::invalid_resource_handle;
      case RuntimeCall::event_destroy: return runtime_.end_event(argument(0)) ? CallError::none : CallError::invalid_resource_handle;
      case RuntimeCall::malloc: return allocate();
      case RuntimeCall::free: return release();
      case RuntimeCall::launch: return launch();
      case RuntimeCall::launch_v2: return launch_prepared();
      case RuntimeCall::memcpy: return copy_rows(0, argument(2), 1, 0, 1, 0, 3, 4);
      case RuntimeCall::memcpy_2d: return copy_rows(0, argument(4), argument(5), argument(1), 2, argument(3), 6, 7);
      case RuntimeCall::memcpy_3d: return copy_3d();
      case RuntimeCall::memset: return fill({argument(0), 0, 0}, {argument(2), 1, 1}, 1, 3);
      case RuntimeCall::memset_2d: return fill({argument(0), argument(1), 0}, {argument(3), argument(4), 1}, 2, 5);
      case RuntimeCall::memset_3d: return fill_3d();
      case RuntimeCall::get_error_name:
      case RuntimeCall::get_error_string:
      case RuntimeCall::get_last_error:
      case RuntimeCall::get_parameter_buffer:
      case RuntimeCall::get_parameter_buffer_v2:
      case RuntimeCall::peek_at_last_error: break;
    }
    return CallError::not_supported;
  }

  // Arguments and results
  const std::byte* argument_bytes(std::size_t index) const {
    const Slot& slot = site_.parameters[index];
    return warp_.frame->memory + slot.offset + lane_ * slot.stride;
  }
  std::uint64_t argument(std::size_t index) const {
    std::uint64_t value = 0;
    std::memcpy(&value, argument_bytes(index), std::min<std::size_t>(site_.parameters[index].size, sizeof value));
    return value;
  }
  template <class T>
  T argument_as(std::size_t index) const {
    T value{};
    std::memcpy(&value, argument_bytes(index), sizeof value);
    return value;
  }
  void answer(std::uint64_t value) {
    if (site_.returns.empty()) return;
    const Slot& slot = site_.returns[0];
    std::memcpy(warp_.frame->memory + slot.offset + lane_ * slot.stride, &value, std::min<std::size_t>(slot.size, sizeof value));
  }
  std::uint32_t& last_error() { return warp_.last_error[lane_]; }

  bool may_touch(std::uint64_t address, std::uint32_t bytes, bool is_write) {
    for (const AddressRange& window : warp_.windows) {
      if (address >= window.begin && address < window.end && window.end - address >= bytes && (!is_write || window.is_writable)) return true;
    }
    if (find_range(*warp_.view, address, bytes, is_write)) return true;
    has_faulted_ = true;
    bad_address_ = address;
    was_write_ = is_write;
    return false;
  }
  template <class T>
  CallError store(std::uint64_t address, const T& value) {
    if (address == 0) return CallError::invalid_value;
    if (may_touch(address, sizeof value, true)) std::memcpy(reinterpret_cast<void*>(address), &value, sizeof value);
    return CallError::none;
  }

  // Facts
  CallError get_attribute() {
    if (argument(2) != 0) return CallError::invalid_device;
    std::int32_t value = 0;
    const DeviceRuntimeHost* host = runtime_.hooks().runtime_host;
    if (host == nullptr || !host->attribute(static_cast<std::int32_t>(argument(1)), value)) return CallError::invalid_value;
    return store(argument(0), value);
  }
  CallError get_limit() {
    std::uint64_t value = 0;
    const DeviceRuntimeHost* host = runtime_.hooks().runtime_host;
    if (host == nullptr || !host->limit(static_cast<std::int32_t>(argument(1)), value)) return CallError::invalid_value;
    return store(argument(0), value);
  }
  CallError get_device_count() {
    const DeviceRuntimeHost* host = runtime_.hooks().runtime_host;
    return store(argument(0), host == nullptr ? 1 : host->device_count());  // an engine by itself is a device
  }
  CallError get_version() {
    const DeviceRuntimeHost* host = runtime_.hooks().runtime_host;
    return host == nullptr ? CallError::not_supported : store(argument(0), host->runtime_version());
  }
  const KernelInfo* kernel_at(std::uint64_t handle, std::uint32_t& kernel) const {
    const Program& program = *launch_.program;
    if (handle < kFunctionHandleBase || handle % 16 != 0) return nullptr;
    const auto found = std::ranges::find(program.kernel_functions, (handle - kFunctionHandleBase) / 16);
    if (found == program.kernel_functions.end()) return nullptr;
    kernel = static_cast<std::uint32_t>(found - program.kernel_functions.begin());
    return &program.kernels[kernel];
  }
  CallError get_function_attributes() {
    std::uint32_t kernel = 0;
    const KernelInfo* info = kernel_at(argument(1), kernel);
    if (info == nullptr) return CallError::invalid_device_function;
    FunctionAttributes attributes;
    attributes.shared_size_bytes = info->static_shared_bytes;
    attributes.const_size_bytes = info->const_bytes;
    attributes.local_size_bytes = info->local_bytes;
    attributes.max_threads_per_block = static_cast<std::int32_t>(info->max_threads_per_block);
    attributes.registers = static_cast<std::int32_t>(info->registers);
    attributes.ptx_version = static_cast<std::int32_t>(info->target_sm);
    if (const DeviceRuntimeHost* host = runtime_.hooks().runtime_host) {
      attributes.binary_version = host->binary_version();
      attributes.max_dynamic_shared_bytes = host->max_dynamic_shared_bytes(kernel);
    }
    return store(argument(0), attributes);
  }
  CallError get_occupancy() {
    std::uint32_t kernel = 0;
    if (kernel_at(argument(1), kernel) == nullptr) return CallError::invalid_device_function;
    const DeviceRuntimeHost* host = runtime_.hooks().runtime_host;
    if (host == nullptr) return CallError::not_supported;
    return store(argument(0), host->resident_blocks(kernel, static_cast<std::int32_t>(argument(2)), argument(3)));
  }

  // The heap
  CallError allocate() {
    DeviceHeap* heap = runtime_.hooks().heap;
    const std::uint64_t address = heap == nullptr ? 0 : heap->allocate(argument(1));
    if (address == 0 && argument(1) != 0) return CallError::memory_allocation;
    return store(argument(0), address);
  }
  CallError release() {
    if (DeviceHeap* heap = runtime_.hooks().heap; heap != nullptr && argument(0) != 0) heap->release(argument(0));
    return CallError::none;
  }

  // Launches
  CallError check_launch(const GridRequest& request) const {
    const DeviceRuntimeHost* host = runtime_.hooks().runtime_host;
    const auto is_empty = [](const Dim3& d) { return d.x == 0 || d.y == 0 || d.z == 0; };
    if (is_empty(request.grid) || is_empty(request.block)) return CallError::invalid_configuration;
    if (host == nullptr) return CallError::none;
    return host->may_launch(request.kernel, request.grid, request.block, request.dynamic_shared_bytes) ? CallError::none
                                                                                                       : CallError::invalid_configuration;
  }
  CallError read_request(std::size_t function, std::size_t grid, std::size_t shared, GridRequest& request) const {
    if (kernel_at(argument(function), request.kernel) == nullptr) return CallError::invalid_device_function;
    request.grid = argument_as<Dim3>(grid);
    request.block = argument_as<Dim3>(grid + 1);
    request.dynamic_shared_bytes = static_cast<std::uint32_t>(argument(shared));
    return check_launch(request);
  }
  std::uint64_t get_buffer() {
    if (argument(1) > DeviceRuntime::kMaxParameterBytes) {
      last_error() = static_cast<std::uint32_t>(CallError::invalid_value);
      return 0;
    }
    return or_count_exceeded(runtime_.take_buffer(static_cast<std::uint32_t>(argument(1)), {}));
  }
  std::uint64_t prepare_launch() {
    GridRequest request;
    if (const CallError error = read_request(0, 1, 3, request); error != CallError::none) {
      last_error() = static_cast<std::uint32_t>(error);
      return 0;
    }
    const std::uint32_t bytes = launch_.program->kernels[request.kernel].parameter_bytes;
    return or_count_exceeded(runtime_.take_buffer(bytes, std::move(request)));
  }
  std::uint64_t or_count_exceeded(std::uint64_t buffer) {
    if (buffer == 0) last_error() = static_cast<std::uint32_t>(CallError::launch_pending_count_exceeded);
    return buffer;
  }
  CallError launch_prepared() {
    GridRequest request;
    if (!runtime_.is_stream(argument(1))) return CallError::invalid_resource_handle;
    if (!runtime_.use_buffer(argument(0), request)) return CallError::invalid_value;
    return runtime_.submit(launch_.pending, std::move(request), argument(1));
  }
  CallError launch() {
    GridRequest request;
    GridRequest buffered;
    if (const CallError error = read_request(0, 2, 4, request); error != CallError::none) return error;
    if (!runtime_.is_stream(argument(5))) return CallError::invalid_resource_handle;
    const std::uint32_t bytes = launch_.program->kernels[request.kernel].parameter_bytes;
    const bool has_buffer = runtime_.use_buffer(argument(1), buffered);
    if (!has_buffer && bytes != 0) return CallError::invalid_value;
    buffered.parameters.resize(std::max<std::size_t>(buffered.parameters.size(), bytes));
    request.parameters = std::move(buffered.parameters);
    return runtime_.submit(launch_.pending, std::move(request), argument(5));
  }

  // Copies and fills. Memory of a block or a thread is gone before they begin.
  bool is_of_block(std::uint64_t address) const {
    const auto is_in = [&](Window window) {
      const AddressRange& range = warp_.windows[static_cast<std::size_t>(window)];
      return address >= range.begin && address < range.end;
    };
    return is_in(Window::shared) || is_in(Window::local) || is_in(Window::parameters);
  }
  CallError submit_box(BoxRequest request, std::uint64_t stream) {
    if (is_of_block(request.destination.address) || (!request.is_fill && is_of_block(request.source.address))) return CallError::invalid_value;
    if (!runtime_.is_stream(stream)) return CallError::invalid_resource_handle;
    return runtime_.submit(launch_.pending, request, stream);
  }
  CallError copy_rows(std::size_t destination, std::uint64_t width, std::uint64_t height, std::uint64_t destination_pitch, std::size_t source,
                      std::uint64_t source_pitch, std::size_t kind, std::size_t stream) {
    if (argument(kind) != kDeviceToDevice && argument(kind) != kDefaultKind) return CallError::invalid_memcpy_direction;
    BoxRequest request;
    request.size = {width, height, 1};
    request.destination = {argument(destination), destination_pitch, 0};
    request.source = {argument(source), source_pitch, 0};
    return submit_box(request, argument(stream));
  }
  CallError copy_3d() {
    Copy3d copy;
    if (!may_touch(argument(0), sizeof copy, false)) return CallError::none;
    std::memcpy(&copy, reinterpret_cast<const void*>(argument(0)), sizeof copy);
    if (copy.source_array != 0 || copy.destination_array != 0) return CallError::not_supported;
    if (copy.kind != kDeviceToDevice && copy.kind != kDefaultKind) return CallError::invalid_memcpy_direction;
    BoxRequest request;
    request.size = {copy.extent[0], copy.extent[1], copy.extent[2]};
    request.destination = place_of(copy.destination, copy.destination_position);
    request.source = place_of(copy.source, copy.source_position);
    return submit_box(request, argument(1));
  }
  CallError fill(const BoxRequest::Place& destination, const std::array<std::uint64_t, 3>& size, std::size_t value, std::size_t stream) {
    BoxRequest request;
    request.is_fill = true;
    request.size = size;
    request.destination = destination;
    request.value = static_cast<std::uint8_t>(argument(value));
    return submit_box(request, argument(stream));
  }
  CallError fill_3d() {
    const auto pointer = argument_as<PitchedPointer>(0);
    const auto extent = argument_as<std::array<std::uint64_t, 3>>(2);
    return fill({pointer.address, pointer.pitch, pointer.pitch * pointer.height}, extent, 1, 3);
  }

  Warp& warp_;
  const CallSite& site_;
  const std::uint32_t lane_;
  Launch& launch_;
  DeviceRuntime& runtime_;
  bool has_faulted_ = false;
  bool was_write_ = false;
  std::uint64_t bad_address_ = 0;
};

}  // namespace

Flow call_device_runtime(Warp& warp, const Instruction& in, const CallSite& site, RuntimeCall what) {
  for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
    RuntimeThread call(warp, site, static_cast<std::uint32_t>(__builtin_ctz(rest)));
    call.run(what);
    if (call.has_faulted()) return raise(warp, Fault::illegal_address, in, call.bad_address(), call.was_write());
  }
  return Flow::next;
}

}  // namespace mpsshim::ptx
