// SPDX-License-Identifier: Apache-2.0
// Threads that copy memory beside the calling one, because one core copies at a fifth of what the machine's memory and the GPU's link can
// take. Helpers are made when there is work for them, sleep without spinning, and end after a few idle seconds; where none can be made the
// caller does everything itself. Any number of threads may hand in tasks; tasks begin in the order of submit().
//
// Helpers block all signals but those that their own accesses raise: a program that handles SIGSEGV to make memory present (as it would for
// the driver's copies) is asked here as well; a pointer to nothing ends the program, as natively.
// After fork() the child has none of the threads; it is "not initialised" and never comes here.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "interposer/forward/memory/copy_bytes.hpp"
#include "proto/cond_var.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

// Owned by who submits it, who calls finish() before it ends.
class CopyTask {
 public:
  CopyTask() = default;
  CopyTask(const CopyTask&) = delete;

 private:
  friend class CopyCrew;
  enum State : std::uint32_t { done, pending, awaited };  // awaited: finish() sleeps on it

  std::byte* to_ = nullptr;
  const std::byte* from_ = nullptr;
  std::size_t size_bytes_ = 0;
  Caching caching_{};
  CopyTask* next_ = nullptr;  // in the queue; under the crew's mutex
  std::atomic<std::uint32_t> state_{done};
};

class CopyCrew {
 public:
  // At most so many helpers beside the calling threads.
  explicit CopyCrew(unsigned helpers) : helpers_(helpers) {}
  // For tests: all tasks are finished, no other thread is inside.
  ~CopyCrew();
  CopyCrew(const CopyCrew&) = delete;

  // The process's: half the usable cores, at most 4, the calling thread included; MPSSHIM_COPY_THREADS names another number. Never destroyed.
  [[nodiscard]] static CopyCrew& instance();

  void submit(CopyTask& task, std::byte* to, const std::byte* from, std::size_t size_bytes, Caching caching);
  // Returns when the task is done; copies meanwhile what nobody has begun.
  void finish(CopyTask& task);
  // Does the first task that nobody has begun. False: there is none.
  bool help();
  [[nodiscard]] static bool is_done(const CopyTask& task) { return task.state_.load(std::memory_order_acquire) == CopyTask::done; }

  [[nodiscard]] bool has_helpers() const { return helpers_ != 0; }
  [[nodiscard]] unsigned living_helpers();

 private:
  struct Helper {
    CopyCrew* crew = nullptr;
    pthread_t thread{};
    bool is_over = false;  // its thread can be joined at once
  };

  static void* helper_main(void* self);
  void work(Helper& self);
  void add_helper() REQUIRES(mutex_);
  [[nodiscard]] CopyTask* pop() REQUIRES(mutex_);
  static void run(CopyTask& task);

  const unsigned helpers_;
  Mutex mutex_;
  CondVar submitted_;
  CopyTask* first_ GUARDED_BY(mutex_) = nullptr;
  CopyTask* last_ GUARDED_BY(mutex_) = nullptr;
  std::size_t waiting_ GUARDED_BY(mutex_) = 0;  // tasks in the queue
  unsigned asleep_ GUARDED_BY(mutex_) = 0;      // helpers
  std::vector<Helper*> team_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
};

}  // namespace mpsshim::interposer::forward
