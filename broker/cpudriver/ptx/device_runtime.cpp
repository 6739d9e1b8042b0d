// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/ptx/device_runtime.hpp"

#include <sys/mman.h>

#include <cstring>
#include <utility>

namespace mpsshim::ptx {
namespace {

constexpr std::uint64_t kMemoryBytes = std::uint64_t{64} << 20;  // reserved; pages come when they are written
constexpr std::uint32_t kBufferAlignment = 64;
constexpr std::uint64_t kFirstHandle = 0x0d00'0000'0000'0001;  // no address, and none of the built-in streams
// A GPU has room for 2,048 launches that wait (cudaLimitDevRuntimePendingLaunchCount), but begins them while their parent runs. Here they wait
// for its end, so many more may; this bounds the memory that a runaway kernel takes.
constexpr std::uint64_t kMaxWaiting = std::uint64_t{1} << 20;

std::uint32_t rounded(std::uint32_t bytes) {
  const std::uint32_t least = bytes == 0 ? 1 : bytes;
  return (least + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

bool add_overflows(std::uint64_t a, std::uint64_t b, std::uint64_t& sum) { return __builtin_add_overflow(a, b, &sum); }

struct ErrorText {
  RuntimeError error;
  std::string_view name;
  std::string_view text;
};

constexpr ErrorText kErrors[] = {
    {RuntimeError::none, "cudaSuccess", "no error"},
    {RuntimeError::invalid_value, "cudaErrorInvalidValue", "invalid argument"},
    {RuntimeError::memory_allocation, "cudaErrorMemoryAllocation", "out of memory"},
    {RuntimeError::invalid_configuration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {RuntimeError::invalid_memcpy_direction, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {RuntimeError::launch_max_depth_exceeded, "cudaErrorLaunchMaxDepthExceeded", "launch would exceed maximum depth of nested launches"},
    {RuntimeError::launch_pending_count_exceeded, "cudaErrorLaunchPendingCountExceeded",
     "launch failed because launch would exceed cudaLimitDevRuntimePendingLaunchCount"},
    {RuntimeError::invalid_device_function, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {RuntimeError::invalid_device, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {RuntimeError::invalid_resource_handle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {RuntimeError::not_supported, "cudaErrorNotSupported", "operation not supported"},
};
constexpr ErrorText kUnknownError = {RuntimeError::none, "unrecognized error code", "unrecognized error code"};

const ErrorText& text_of(RuntimeError error) {
  for (const ErrorText& known : kErrors) {
    if (known.error == error) return known;
  }
  return kUnknownError;
}

}  // namespace

std::string_view name_of(RuntimeError error) { return text_of(error).name; }
std::string_view describe(RuntimeError error) { return text_of(error).text; }

Work PendingWork::take() {
  std::deque<Work>& from = ordinary.empty() ? tail : ordinary;
  Work next = std::move(from.front());
  from.pop_front();
  return next;
}

DeviceRuntime::~DeviceRuntime() {
  if (memory_ != nullptr) munmap(memory_, kMemoryBytes);
}

bool DeviceRuntime::open() {
  void* memory = mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  memory_ = static_cast<std::byte*>(memory);
  return true;
}

AddressRange DeviceRuntime::memory() const {
  const auto begin = reinterpret_cast<std::uint64_t>(memory_);
  return {begin, begin + (memory_ == nullptr ? 0 : kMemoryBytes), true};
}

std::uint64_t DeviceRuntime::allocate(std::uint32_t bytes) {
  if (kMemoryBytes - used_bytes_ < bytes) return 0;
  const std::uint64_t address = reinterpret_cast<std::uint64_t>(memory_) + used_bytes_;
  used_bytes_ += bytes;
  return address;
}

std::uint64_t DeviceRuntime::take_buffer(std::uint32_t bytes, GridRequest request) {
  const std::uint32_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  std::uint64_t address = 0;
  if (std::vector<std::uint64_t>& free = free_[size]; !free.empty()) {
    address = free.back();
    free.pop_back();
  } else {
    address = allocate(size);
  }
  if (address != 0) buffers_[address] = Buffer{bytes, std::move(request)};
  return address;
}

bool DeviceRuntime::use_buffer(std::uint64_t address, GridRequest& request) {
  const std::lock_guard lock(mutex_);
  const auto found = buffers_.find(address);
  if (found == buffers_.end()) return false;
  const auto* content = reinterpret_cast<const std::byte*>(address);
  request = std::move(found->second.request);
  request.parameters.assign(content, content + found->second.bytes);
  free_[rounded(found->second.bytes)].push_back(address);
  buffers_.erase(found);
  return true;
}

std::uint64_t DeviceRuntime::text(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (const auto known = texts_.find(text); known != texts_.end()) return known->second;
  const std::uint64_t address = allocate(rounded(static_cast<std::uint32_t>(text.size()) + 1));
  if (address == 0) return 0;
  auto* copy = reinterpret_cast<char*>(address);
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  texts_.emplace(text, address);
  return address;
}

std::uint64_t DeviceRuntime::make(Handles DeviceRuntime::*handles) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t handle = kFirstHandle + next_handle_++;
  (this->*handles).insert(handle);
  return handle;
}

bool DeviceRuntime::end(Handles DeviceRuntime::*handles, std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  return (this->*handles).erase(handle) != 0;
}

bool DeviceRuntime::is_in(Handles DeviceRuntime::*handles, std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  return (this->*handles).contains(handle);
}

RuntimeError DeviceRuntime::submit(PendingWork& pending, Work work, std::uint64_t stream) {
  const bool is_tail = stream == kTailStream;
  if (!is_tail && pending.depth >= kMaxDepth) return RuntimeError::launch_max_depth_exceeded;
  const std::lock_guard lock(mutex_);
  if (waiting_ >= kMaxWaiting) return RuntimeError::launch_pending_count_exceeded;
  ++waiting_;
  (is_tail ? pending.tail : pending.ordinary).push_back(std::move(work));
  return RuntimeError::none;
}

void DeviceRuntime::note_begun() {
  const std::lock_guard lock(mutex_);
  --waiting_;
}

bool DeviceRuntime::may_touch(std::uint64_t address, std::uint64_t bytes, bool is_write) const {
  const AddressRange range = hooks_.memory->find(address);
  return address >= range.begin && address < range.end && range.end - address >= bytes && (!is_write || range.is_writable);
}

bool DeviceRuntime::perform(const BoxRequest& request, BadAccess& bad) const {
  const auto& [width, height, depth] = request.size;
  if (width == 0) return true;
  for (std::uint64_t slice = 0; slice < depth; ++slice) {
    for (std::uint64_t row = 0; row < height; ++row) {
      if (hooks_.cancel != nullptr && hooks_.cancel->load(std::memory_order_relaxed)) return true;  // the next grid's start tells it
      const auto row_of = [&](const BoxRequest::Place& place) { return place.address + slice * place.slice_pitch + row * place.row_pitch; };
      const std::uint64_t to = row_of(request.destination);
      const std::uint64_t from = row_of(request.source);
      std::uint64_t end = 0;
      bad = {to, true};
      if (add_overflows(to, width, end) || !may_touch(to, width, true)) return false;
      if (request.is_fill) {
        std::memset(reinterpret_cast<void*>(to), request.value, width);
        continue;
      }
      bad = {from, false};
      if (add_overflows(from, width, end) || !may_touch(from, width, false)) return false;
      std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), width);
    }
  }
  return true;
}

}  // namespace mpsshim::ptx
