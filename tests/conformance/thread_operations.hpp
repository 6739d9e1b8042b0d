// SPDX-License-Identifier: Apache-2.0
// What threads of a program do to CUDA at once: operations, each a few calls that one thread makes again and again, on objects of its own and on
// some that all threads share as CUDA allows it.
//
// Any thread. No assertion of the test framework is made in them, which is not for threads: a status that is not expected, or data that is not
// right, is noted in Findings, once each.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernel_list.hpp"
#include "shared_word.hpp"

namespace mpsshim::test {

class Findings {
 public:
  void add(const std::string& what) {
    const std::lock_guard lock(mutex_);
    ++found_[what];
  }
  // A line for each, and an end.
  std::string take() {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& [what, times] : found_) text += what + " (" + std::to_string(times) + " times)\n";
    found_.clear();
    return text;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, unsigned> found_;
};

// Handles that one thread makes and another one may end.
template <class Handle>
class Passed {
 public:
  static constexpr size_t kMost = 8;

  // Returns one that has to go because there are too many.
  std::optional<Handle> put(Handle handle) {
    const std::lock_guard lock(mutex_);
    handles_.push_back(handle);
    return handles_.size() > kMost ? take_locked() : std::nullopt;
  }
  std::optional<Handle> take() {
    const std::lock_guard lock(mutex_);
    return take_locked();
  }

 private:
  std::optional<Handle> take_locked() {
    if (handles_.empty()) return std::nullopt;
    const Handle first = handles_.front();
    handles_.erase(handles_.begin());
    return first;
  }

  std::mutex mutex_;
  std::vector<Handle> handles_;
};

// What all threads have in common. Made and ended while none of them runs.
struct SharedObjects {
  static constexpr unsigned kPattern = 0x5eed;
  static constexpr size_t kPatternWords = 1024;

  SharedObjects();
  ~SharedObjects();
  SharedObjects(const SharedObjects&) = delete;
  SharedObjects& operator=(const SharedObjects&) = delete;

  // No thread runs: ends what was passed and not taken, and looks whether everything asked for was done, once.
  void settle(Findings& findings);

  CUcontext current() const { return context.handle(); }

  DeviceContext context;
  LoadedImage image;
  CUfunction add_to = image.function("add_to");
  CUfunction store = image.function("store");
  DeviceArray<unsigned> sum{1};                  // kernels add 1 to it
  std::atomic<unsigned> expected_sum{0};         // as many times
  std::atomic<unsigned> host_calls{0};           // that host functions have counted
  std::atomic<unsigned> expected_host_calls{0};  // that were asked for
  DeviceArray<unsigned> pattern{kPatternWords};  // read by everybody, written by nobody
  std::array<CUstream, 3> streams{};             // the last is ordered with the NULL stream
  std::array<CUevent, 2> events{};
  Passed<CUstream> passed_streams;
  Passed<CUevent> passed_events;
  std::mutex graph_mutex;  // graphs are for one thread at a time
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
};

// One thread of a pair, with what it alone uses.
class Worker {
 public:
  static constexpr size_t kBytes = 16384;
  static constexpr size_t kWords = kBytes / sizeof(unsigned);

  Worker(SharedObjects& all, Findings& found, unsigned seed);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // For operations: `status` of the call named last is one of `expected`. False: it is noted.
  bool expect(CUresult status, std::initializer_list<CUresult> expected = {CUDA_SUCCESS});
  void expect_words(std::span<const unsigned> words, unsigned value, const char* where);
  // For the work in the shared streams.
  void wait();
  unsigned below(unsigned limit) { return static_cast<unsigned>(random_() % limit); }
  CUstream any_stream() { return shared.streams[below(static_cast<unsigned>(shared.streams.size()))]; }
  CUevent any_event() { return shared.events[below(static_cast<unsigned>(shared.events.size()))]; }
  // Adds 1 to the shared sum.
  bool add_one(CUstream stream);

  SharedObjects& shared;
  std::atomic<const char*> operation{"nothing"};
  std::atomic<const char*> call{"no call"};  // being made, or made last
  CUstream stream = nullptr;
  CUdeviceptr device = 0;
  unsigned* pinned = nullptr;
  unsigned* pages = nullptr;         // pageable
  bool captures_meet_waits = false;  // one thread captures and the other waits for all of the context: CUDA refuses both, now and then

 private:
  Findings& findings_;
  std::mt19937 random_;
};

struct Operation {
  const char* name;
  void (*step)(Worker&);
  bool on_cpu_driver = true;
  bool waits_for_all = false;  // of the context
  bool captures = false;
};

std::span<const Operation> thread_operations();

}  // namespace mpsshim::test
