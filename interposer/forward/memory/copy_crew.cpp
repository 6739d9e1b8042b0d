// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/copy_crew.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <memory>
#include <new>

#include <sched.h>

#include "interposer/environment.hpp"
#include "interposer/library_thread.hpp"
#include "proto/futex.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::chrono::seconds kHelperIdleTime{5};
constexpr unsigned kMostThreads = 4;  // more were slower (docs/experiments/2026-11-21-copies.md)
constexpr std::uint64_t kSleepUs = 20'000;

// Helpers, so without the calling thread.
unsigned wanted_helpers() {
  const std::string_view text = environment_value(Variable::copy_threads);
  unsigned threads = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), threads).ec == std::errc{} && threads >= 1) return std::min(threads, 64u) - 1;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 0;
  return std::clamp(static_cast<unsigned>(CPU_COUNT(&cores)) / 2, 1u, kMostThreads) - 1;
}

}  // namespace

CopyCrew& CopyCrew::instance() {
  static auto* crew = new CopyCrew(wanted_helpers());  // never destroyed
  return *crew;
}

CopyCrew::~CopyCrew() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  submitted_.notify_all();
  for (Helper* helper : team_) {
    pthread_join(helper->thread, nullptr);
    delete helper;
  }
}

unsigned CopyCrew::living_helpers() {
  const std::lock_guard lock(mutex_);
  return static_cast<unsigned>(std::count_if(team_.begin(), team_.end(), [](const Helper* helper) { return !helper->is_over; }));
}

void CopyCrew::submit(CopyTask& task, std::byte* to, const std::byte* from, std::size_t size_bytes, Caching caching) {
  task.to_ = to;
  task.from_ = from;
  task.size_bytes_ = size_bytes;
  task.caching_ = caching;
  task.next_ = nullptr;
  task.state_.store(CopyTask::pending, std::memory_order_relaxed);
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    (first_ == nullptr ? first_ : last_->next_) = &task;
    last_ = &task;
    ++waiting_;
    wake = asleep_ != 0;
    if (asleep_ < waiting_) add_helper();
  }
  if (wake) submitted_.notify_one();
}

void CopyCrew::add_helper() {
  const auto over = std::find_if(team_.begin(), team_.end(), [](const Helper* helper) { return helper->is_over; });
  if (over == team_.end() && team_.size() >= helpers_) return;
  if (over != team_.end()) {
    pthread_join((*over)->thread, nullptr);
    delete *over;
    team_.erase(over);
  }
  try {
    auto helper = std::make_unique<Helper>();
    helper->crew = this;
    team_.reserve(team_.size() + 1);
    if (start_library_thread(helper_main, helper.get(), &helper->thread)) team_.push_back(helper.release());
  } catch (const std::bad_alloc&) {  // one less
  }
}

void* CopyCrew::helper_main(void* self) {
  pthread_setname_np(pthread_self(), "mpsshim-copy");
  auto& helper = *static_cast<Helper*>(self);
  helper.crew->work(helper);
  return nullptr;
}

void CopyCrew::work(Helper& self) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (CopyTask* task = pop()) {
      lock.unlock();
      run(*task);
      lock.lock();
      continue;
    }
    if (stopping_) break;
    ++asleep_;
    const bool is_called = submitted_.wait_for(lock, kHelperIdleTime, [&]() REQUIRES(mutex_) { return first_ != nullptr || stopping_; });
    --asleep_;
    if (!is_called) break;
  }
  self.is_over = true;
}

CopyTask* CopyCrew::pop() {
  CopyTask* task = first_;
  if (task == nullptr) return nullptr;
  first_ = task->next_;
  --waiting_;
  return task;
}

void CopyCrew::run(CopyTask& task) {
  copy_bytes(task.to_, task.from_, task.size_bytes_, task.caching_);
  // The task's owner may end it as soon as `done` is there; the wake then names an address nobody sleeps on.
  if (task.state_.exchange(CopyTask::done, std::memory_order_acq_rel) == CopyTask::awaited) proto::futex_wake_one(task.state_);
}

bool CopyCrew::help() {
  CopyTask* task = nullptr;
  {
    const std::lock_guard lock(mutex_);
    task = pop();
  }
  if (task != nullptr) run(*task);
  return task != nullptr;
}

void CopyCrew::finish(CopyTask& task) {
  while (!is_done(task)) {
    if (help()) continue;
    // Somebody has begun it. Pairs with the exchange in run(): it sees that we sleep, or we see that it is done.
    std::uint32_t expected = CopyTask::pending;
    task.state_.compare_exchange_strong(expected, CopyTask::awaited, std::memory_order_acq_rel);
    if (expected != CopyTask::done) proto::futex_wait(task.state_, CopyTask::awaited, kSleepUs);
  }
}

}  // namespace mpsshim::interposer::forward
