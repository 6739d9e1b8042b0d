// SPDX-License-Identifier: Apache-2.0
//
// Dynamic parallelism: what the grids that descend from one launch of the host share, and what each of them has asked
// for (CUDA Programming Guide, "CUDA Dynamic Parallelism", the second version of it: no grid waits for its children).
//
// A grid's launches, copies and fills begin when it has ended, one after the other in the order of the calls, each with
// all that descends from it; then those of its tail stream. That keeps every order that streams, events and the tail
// stream promise. Nothing promises that a child runs beside its parent.
//
// Threads: kernels' threads call from all of the engine's; one mutex guards each object.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "broker/cpudriver/ptx/engine.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::ptx {

// Numbers are cudaError_t's (CUDA Runtime API manual).
enum class RuntimeError : std::uint32_t {
  none = 0,
  invalid_value = 1,
  memory_allocation = 2,
  invalid_configuration = 9,
  invalid_memcpy_direction = 21,
  launch_max_depth_exceeded = 65,
  launch_pending_count_exceeded = 69,
  invalid_device_function = 98,
  invalid_device = 101,
  invalid_resource_handle = 400,
  not_supported = 801,
};
[[nodiscard]] std::string_view name_of(RuntimeError error);
[[nodiscard]] std::string_view describe(RuntimeError error);

struct GridRequest {
  std::uint32_t kernel = 0;
  Dim3 grid;
  Dim3 block;
  std::uint32_t dynamic_shared_bytes = 0;
  std::vector<std::byte> parameters;
};

// A box of `size[0]` bytes a row, `size[1]` rows, `size[2]` slices. Nothing of it is checked yet.
struct BoxRequest {
  struct Place {
    std::uint64_t address = 0;
    std::uint64_t row_pitch = 0;
    std::uint64_t slice_pitch = 0;
  };
  std::array<std::uint64_t, 3> size{0, 1, 1};
  Place destination;
  Place source;
  bool is_fill = false;
  std::uint8_t value = 0;
};

using Work = std::variant<GridRequest, BoxRequest>;

// What one grid has asked for.
struct PendingWork {
  std::uint32_t depth = 0;  // of the grid: 0 for the host's
  std::deque<Work> ordinary;
  std::deque<Work> tail;

  [[nodiscard]] bool is_empty() const { return ordinary.empty() && tail.empty(); }
  [[nodiscard]] Work take();  // the next to run; not empty
};

class DeviceRuntime {
 public:
  static constexpr std::uint32_t kMaxDepth = 24;  // levels below the host's grid
  // cudaStream_t values with a meaning of their own.
  static constexpr std::uint64_t kTailStream = 3;
  static constexpr std::uint64_t kLastBuiltInStream = 4;

  explicit DeviceRuntime(const LaunchHooks& hooks) : hooks_(hooks) {}
  ~DeviceRuntime();
  DeviceRuntime(const DeviceRuntime&) = delete;
  DeviceRuntime& operator=(const DeviceRuntime&) = delete;

  // Memory that kernels may touch besides the AddressMap's. False: none could be had.
  [[nodiscard]] bool open();
  [[nodiscard]] AddressRange memory() const;

  // Where a kernel writes the parameters of the launch that it prepares; 0: no room. `bytes`: at most kMaxParameterBytes.
  static constexpr std::uint32_t kMaxParameterBytes = 32768;
  [[nodiscard]] std::uint64_t take_buffer(std::uint32_t bytes, GridRequest request);
  // The launch that was prepared with the buffer, with the parameters that are in it now; the buffer is free again. False: there is none.
  [[nodiscard]] bool use_buffer(std::uint64_t address, GridRequest& request);
  // A NUL-terminated copy for kernels, the same for equal texts; 0: no room.
  [[nodiscard]] std::uint64_t text(std::string_view text);

  [[nodiscard]] std::uint64_t make_stream() { return make(&DeviceRuntime::streams_); }
  [[nodiscard]] std::uint64_t make_event() { return make(&DeviceRuntime::events_); }
  [[nodiscard]] bool end_stream(std::uint64_t handle) { return end(&DeviceRuntime::streams_, handle); }
  [[nodiscard]] bool end_event(std::uint64_t handle) { return end(&DeviceRuntime::events_, handle); }
  [[nodiscard]] bool is_stream(std::uint64_t handle) { return handle <= kLastBuiltInStream || is_in(&DeviceRuntime::streams_, handle); }
  [[nodiscard]] bool is_event(std::uint64_t handle) { return is_in(&DeviceRuntime::events_, handle); }

  [[nodiscard]] RuntimeError submit(PendingWork& pending, Work work, std::uint64_t stream);
  // Of what was submitted, one item begins.
  void note_begun();

  // Copies or fills. False: `fault` says where memory may not be touched.
  struct BadAccess {
    std::uint64_t address = 0;
    bool is_write = false;
  };
  [[nodiscard]] bool perform(const BoxRequest& request, BadAccess& bad) const;

  [[nodiscard]] const LaunchHooks& hooks() const { return hooks_; }

 private:
  struct Buffer {
    std::uint32_t bytes = 0;
    GridRequest request;
  };
  using Handles = std::set<std::uint64_t>;

  [[nodiscard]] std::uint64_t allocate(std::uint32_t bytes) REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t make(Handles DeviceRuntime::*handles);
  [[nodiscard]] bool end(Handles DeviceRuntime::*handles, std::uint64_t handle);
  [[nodiscard]] bool is_in(Handles DeviceRuntime::*handles, std::uint64_t handle);
  [[nodiscard]] bool may_touch(std::uint64_t address, std::uint64_t bytes, bool is_write) const;

  const LaunchHooks& hooks_;
  std::byte* memory_ = nullptr;  // as open() has made it
  Mutex mutex_;                  // guards what follows, and every grid's PendingWork
  std::uint64_t used_bytes_ GUARDED_BY(mutex_) = 0;
  std::uint64_t waiting_ GUARDED_BY(mutex_) = 0;  // submitted and not begun, of all grids
  std::uint64_t next_handle_ GUARDED_BY(mutex_) = 0;
  Handles streams_ GUARDED_BY(mutex_);
  Handles events_ GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, Buffer> buffers_ GUARDED_BY(mutex_);
  std::map<std::uint32_t, std::vector<std::uint64_t>> free_ GUARDED_BY(mutex_);  // by size
  std::map<std::string, std::uint64_t, std::less<>> texts_ GUARDED_BY(mutex_);
};

}  // namespace mpsshim::ptx
