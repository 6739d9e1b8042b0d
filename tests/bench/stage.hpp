// SPDX-License-Identifier: Apache-2.0
// The memory that mpsbench shares with its workers: one slot a worker. The parent writes an order into a slot and raises `ordered`; the worker
// carries it out between the two moments that it names, writes the outcome and sets `finished`. Both are futex words, so a worker without an
// order sleeps and costs nothing. Times are nanoseconds of the steady clock, which all processes of a machine share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace mpsshim::bench {

inline constexpr unsigned kMaxWorkers = 512;  // what a broker admits
inline constexpr unsigned kPieces = 3;
inline constexpr unsigned kSampledWorkers = 8;  // the first ones, whose samples the parent sees one by one
inline constexpr unsigned kMostSamples = 4096;  // of one order

// What a worker can be told to do; tasks.hpp has the functions.
enum class Task : std::uint32_t {
  leave,
  launch_call,
  storm,
  cluster_storm,
  launch_sync,
  occupy,
  allocate,
  copy_small,
  copy_large,
  paced_sync,
  paused_sync,
  paused_copy,
  waited_kernel,
  upload_steps,
  long_kernels,
  endless_kernel,
  module_rounds,
  fresh_image,
  check_only,
  guilty,
  bystander,
};

struct Order {
  Task task = Task::leave;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t argument[4] = {};
};

// Of the fields a task has no use for, it leaves 0.
struct Outcome {
  double done = 0;  // pieces of work done and checked
  double median_us = 0, p99_us = 0, largest_us = 0;
  double piece_us[kPieces] = {};  // the first pieces one by one, of tasks of few large ones
  std::int64_t last_ns = 0;       // when the last piece was done
  std::uint32_t samples = 0;      // how many lie in the stage, of tasks that leave them there
  bool is_left_out = false;       // the device lacks what the task needs
};

enum class WorkerState : std::uint32_t { starting, ready, failed };

struct alignas(64) Slot {
  std::atomic<std::uint32_t> ordered{0};    // raised by the parent
  std::atomic<std::uint32_t> finished{0};   // = ordered when the outcome is there
  std::atomic<std::uint32_t> cancelled{0};  // a task without an end of its own stops when this equals its order's number
  std::atomic<WorkerState> state{WorkerState::starting};
  std::int64_t first_launch_ns = 0;  // when the worker's first launch was done, or without one, when it was ready
  std::uint64_t image = 0;           // 0: the image all workers share; else the number of an image nobody has seen
  bool launches_first = true;        // false: ready as soon as the module is loaded; its first launch is part of its order
  Order order;
  Outcome outcome;
  char reason[256] = {};  // why it failed
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<WorkerState>::is_always_lock_free);

struct Stage {
  Slot slots[kMaxWorkers];
  float sample_us[kSampledWorkers][kMostSamples];
};

using Clock = std::chrono::steady_clock;
inline std::int64_t now_ns() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }
inline double microseconds_since(Clock::time_point start) { return std::chrono::duration<double, std::micro>(Clock::now() - start).count(); }

// Sleeps while the word has this value; may return early.
void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value);
void wake_all(const std::atomic<std::uint32_t>& word);

// Sleeps until a millisecond before, then watches the clock.
void wait_until(std::int64_t moment_ns);

}  // namespace mpsshim::bench
