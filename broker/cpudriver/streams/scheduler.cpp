// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/streams/scheduler.hpp"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "broker/cpudriver/config.hpp"
#include "broker/cpudriver/streams/stream.hpp"

namespace mpsshim::cpudriver {
namespace {

// A worker without work ends after so long: the pool shrinks again after many streams were busy at once.
constexpr std::chrono::milliseconds kIdleWorkerLife{500};

// A wait on a value looks often at first (the value usually comes soon), then less, and never keeps a core busy.
class PollPause {
 public:
  void pause() {
    if (++rounds_ <= 64) {
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, std::chrono::microseconds(500));
  }

 private:
  unsigned rounds_ = 0;
  std::chrono::microseconds pause_{20};
};

void start_thread(void (*body)(Scheduler*), Scheduler* scheduler) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the process's signals are for its own threads
  std::thread(body, scheduler).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

Scheduler& Scheduler::get() {
  static Scheduler& scheduler = *new Scheduler;
  return scheduler;
}

Position Scheduler::submit(const StreamPtr& stream, Operation operation) {
  std::unique_lock lock(mutex_);
  if (operation.is_launch) {
    progress_.wait(lock, [&]() REQUIRES(mutex_) {
      return failure() != CUDA_SUCCESS || (windows_holding_launches_ == 0 && stream->launches_ < kMaxLaunchesPerStream);
    });
    ++stream->launches_;
  }
  order_with_default_stream(stream, operation);
  const Position position{stream, ++stream->submitted_};
  busy_.insert(stream);
  if (operation.is_instant && run_now(stream, operation)) return position;
  stream->queue_.push_back(std::move(operation));
  if (!stream->has_worker_) park_or_finish(stream);
  return position;
}

CUresult Scheduler::submit_and_wait(const StreamPtr& stream, Operation operation) {
  operation.is_instant = true;  // the caller waits anyway
  return wait(submit(stream, std::move(operation)));
}

// The NULL stream waits for what all blocking streams have, and they wait for what it has (CUDA Programming Guide,
// "Default Stream").
void Scheduler::order_with_default_stream(const StreamPtr& stream, Operation& operation) {
  if (stream->is_legacy_default()) {
    for (const StreamPtr& other : busy_) {
      if (other->is_blocking()) operation.after.push_back({other, other->submitted_});
    }
  } else if (stream->is_blocking()) {
    const StreamPtr& null_stream = stream->default_stream_;
    if (null_stream->completed_ < null_stream->submitted_) {
      operation.after.push_back({null_stream, null_stream->submitted_});
    }
  }
}

bool Scheduler::is_ready(const Operation& operation) const {
  if (failure() != CUDA_SUCCESS) return true;  // it will be dropped, whatever it waits for
  return std::all_of(operation.after.begin(), operation.after.end(),
                     [](const Position& place) { return place.stream == nullptr || place.stream->completed_ >= place.sequence; });
}

// True if the submitting thread has done the operation. False leaves it to be queued.
bool Scheduler::run_now(const StreamPtr& stream, Operation& operation) {
  if (stream->has_worker_ || !stream->queue_.empty() || !is_ready(operation)) return false;
  stream->has_worker_ = true;
  CUresult result = CUDA_SUCCESS;
  {
    const Unlocked meanwhile(mutex_);
    if (failure() == CUDA_SUCCESS) result = operation.run();
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) fail(result);
  }
  stream->has_worker_ = false;
  if (result == CUDA_ERROR_NOT_READY) {
    // Others may have submitted meanwhile; this one came first.
    stream->queue_.push_front(std::move(operation));
    park_or_finish(stream);
    return true;
  }
  complete_one(*stream, operation.is_launch);
  park_or_finish(stream);
  return true;
}

void Scheduler::complete_one(Stream& stream, bool was_launch) {
  ++stream.completed_;
  if (was_launch) --stream.launches_;
  progress_.notify_all();
  wake_dependents(stream);
}

void Scheduler::wake_dependents(Stream& stream) {
  std::vector<StreamPtr> waiting;
  waiting.swap(stream.dependents_);
  for (const StreamPtr& dependent : waiting) {
    if (!dependent->has_worker_) park_or_finish(dependent);
  }
}

void Scheduler::schedule(const StreamPtr& stream) {
  stream->has_worker_ = true;
  runnable_.push_back(stream);
  if (runnable_.size() > idle_workers_) {
    start_thread([](Scheduler* self) { self->work(); }, this);
  } else {
    work_available_.notify_one();
  }
}

// Decides what becomes of a stream that no worker has: nothing left, first operation ready, or waiting for a place.
void Scheduler::park_or_finish(const StreamPtr& stream) {
  if (stream->queue_.empty()) {
    if (stream->completed_ == stream->submitted_) busy_.erase(stream);
    return;
  }
  const Operation& first = stream->queue_.front();
  if (is_ready(first)) {
    schedule(stream);
    return;
  }
  for (const Position& place : first.after) {
    if (place.stream == nullptr || place.stream->completed_ >= place.sequence) continue;
    auto& dependents = place.stream->dependents_;
    if (std::find(dependents.begin(), dependents.end(), stream) == dependents.end()) dependents.push_back(stream);
    return;
  }
}

void Scheduler::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_workers_;
    const bool has_work = work_available_.wait_for(lock, kIdleWorkerLife, [&]() REQUIRES(mutex_) { return !runnable_.empty(); });
    --idle_workers_;
    if (!has_work) return;
    const StreamPtr stream = std::move(runnable_.front());
    runnable_.pop_front();
    serve(stream);
  }
}

void Scheduler::serve(const StreamPtr& stream) {
  while (!stream->queue_.empty() && is_ready(stream->queue_.front())) {
    {
      const Operation operation = std::move(stream->queue_.front());
      stream->queue_.pop_front();
      mutex_.unlock();
      const CUresult result = perform(operation);
      if (result != CUDA_SUCCESS) fail(result);
      mutex_.lock();
      complete_one(*stream, operation.is_launch);
      mutex_.unlock();  // what the operation owns (memory, modules) goes without the mutex
    }
    mutex_.lock();
  }
  stream->has_worker_ = false;
  park_or_finish(stream);
}

CUresult Scheduler::perform(const Operation& operation) {
  PollPause poll;
  while (failure() == CUDA_SUCCESS) {
    const CUresult result = operation.run();
    if (result != CUDA_ERROR_NOT_READY) return result;
    poll.pause();
  }
  return CUDA_SUCCESS;
}

bool Scheduler::reached(const Position& position) {
  if (position.stream == nullptr) return true;
  std::unique_lock lock(mutex_);
  return position.stream->completed_ >= position.sequence;
}

CUresult Scheduler::wait(const Position& position) {
  if (position.stream == nullptr) return failure();
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&]() REQUIRES(mutex_) { return failure() != CUDA_SUCCESS || position.stream->completed_ >= position.sequence; });
  return failure();
}

CUresult Scheduler::wait_for_everything(const Stream* default_stream) {
  std::vector<Position> places;
  {
    std::unique_lock lock(mutex_);
    for (const StreamPtr& stream : busy_) {
      if (default_stream == nullptr || stream->default_stream() == default_stream) places.push_back({stream, stream->submitted_});
    }
  }
  for (const Position& place : places) wait(place);
  return failure();
}

Position Scheduler::last_of(const StreamPtr& stream) {
  std::unique_lock lock(mutex_);
  return {stream, stream->submitted_};
}

void Scheduler::fail(CUresult error) {
  CUresult none = CUDA_SUCCESS;
  if (!failure_.compare_exchange_strong(none, error, std::memory_order_acq_rel)) return;
  cancelled_.store(true, std::memory_order_release);  // read by running kernels
  std::unique_lock lock(mutex_);
  progress_.notify_all();
  const std::vector<StreamPtr> streams(busy_.begin(), busy_.end());
  for (const StreamPtr& stream : streams) {
    if (!stream->has_worker_) park_or_finish(stream);
  }
}

Scheduler::Activity::Activity(Scheduler& scheduler) : scheduler_(scheduler) {
  std::unique_lock lock(scheduler_.mutex_);
  id_ = scheduler_.next_activity_++;
  scheduler_.active_.insert(id_);
}

Scheduler::Activity::~Activity() {
  std::vector<std::function<void()>> due;
  {
    std::unique_lock lock(scheduler_.mutex_);
    scheduler_.active_.erase(id_);
    due = scheduler_.take_due_releases();
    scheduler_.progress_.notify_all();
  }
  for (const auto& release : due) release();
}

Scheduler::QuietWindow::QuietWindow(Scheduler& scheduler, bool launches_pass) : scheduler_(scheduler) {
  if (Config::get().relaxed) return;
  std::unique_lock lock(scheduler_.mutex_);
  holds_ = !launches_pass;
  if (holds_) ++scheduler_.windows_holding_launches_;
  const std::uint64_t next = scheduler_.next_activity_;
  scheduler_.progress_.wait(lock, [&]() REQUIRES(scheduler_.mutex_) { return scheduler_.active_.empty() || *scheduler_.active_.begin() >= next; });
}

Scheduler::QuietWindow::~QuietWindow() {
  if (!holds_) return;
  std::unique_lock lock(scheduler_.mutex_);
  --scheduler_.windows_holding_launches_;
  scheduler_.progress_.notify_all();
}

void Scheduler::wait_for_windows() {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&]() REQUIRES(mutex_) { return failure() != CUDA_SUCCESS || windows_holding_launches_ == 0; });
}

void Scheduler::when_quiet(std::function<void()> release) {
  {
    std::unique_lock lock(mutex_);
    if (!active_.empty()) {
      releases_.emplace_back(next_activity_, std::move(release));
      return;
    }
  }
  release();
}

bool Scheduler::is_quiet() {
  std::unique_lock lock(mutex_);
  return active_.empty();
}

std::vector<std::function<void()>> Scheduler::take_due_releases() {
  std::vector<std::function<void()>> due;
  const std::uint64_t oldest = active_.empty() ? next_activity_ : *active_.begin();
  const auto is_due = [oldest](const auto& entry) { return entry.first <= oldest; };
  for (auto& entry : releases_) {
    if (is_due(entry)) due.push_back(std::move(entry.second));
  }
  releases_.erase(std::remove_if(releases_.begin(), releases_.end(), is_due), releases_.end());
  return due;
}

}  // namespace mpsshim::cpudriver
