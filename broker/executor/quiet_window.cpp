// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/quiet_window.hpp"

#include <algorithm>
#include <utility>

#include "broker/log.hpp"
#include "proto/futex.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::chrono::microseconds kPollPause{50};        // while long work runs
constexpr std::chrono::milliseconds kPatientPause{50};     // while only deferred jobs wait and nobody is pressed
constexpr unsigned kSpinsBeforeSleep = 2'000;

}  // namespace

QuietWindow::QuietWindow(const ProgressTable& progress, unsigned workers, Limits limits, std::function<void()> enter_thread)
    : progress_(progress), limits_(limits), gates_(workers), enter_thread_(std::move(enter_thread)) {
  for (Gate& gate : gates_) gate.window_ = this;
  thread_ = std::thread([this] { loop(); });
}

QuietWindow::~QuietWindow() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void QuietWindow::submit(Job job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(job), Clock::now()});
  }
  changed_.notify_all();
}

void QuietWindow::loop() {
  enter_thread_();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    lock.unlock();
    serve();
    lock.lock();
  }
}

// Until no job is left: hold what runs long, then close, drain the rest, run the jobs.
void QuietWindow::serve() {
  pending_.store(true, std::memory_order_relaxed);
  for (StreamWatch& watch : watch_) watch = {};
  for (;;) {
    const Clock::time_point now = Clock::now();
    give_up_overdue(now);
    bool pressing = false;
    {
      std::lock_guard lock(mutex_);
      if (jobs_.empty() || stopping_) break;
      for (const Pending& pending : jobs_) pressing |= now - pending.since < limits_.give_up;
    }
    if (!pressing) release_holds();
    if (hold_long_streams(now)) {
      log_blocker(now);
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, pressing ? Clock::duration(kPollPause) : Clock::duration(kPatientPause), [this] { return stopping_; });
      continue;
    }
    close();
    if (drain()) run_jobs();
    open();
  }
  release_holds();
  pending_.store(shut_, std::memory_order_relaxed);
  if (on_open_) on_open_();
}

bool QuietWindow::is_busy(std::uint32_t index) const {
  const StreamProgress& stream = progress_.stream[index];
  return stream.session.load(std::memory_order_relaxed) != 0 &&
         stream.completed.load(std::memory_order_acquire) != stream.issued.load(std::memory_order_acquire);
}

// True while some stream's work in flight is long. Such streams get no new work, as far as the budget allows.
bool QuietWindow::hold_long_streams(Clock::time_point now) {
  if (holding_ && now - hold_started_ > limits_.hold_per_second) {
    release_holds();
    rest_until_ = now + (std::chrono::seconds(1) - limits_.hold_per_second);
  }
  bool any_long = false;
  for (std::uint32_t i = 0; i < kProgressStreams; ++i) {
    if (!is_busy(i)) {
      watch_[i] = {};
      continue;
    }
    StreamWatch& watch = watch_[i];
    const std::uint32_t completed = progress_.stream[i].completed.load(std::memory_order_relaxed);
    if (watch.since == Clock::time_point{} || watch.completed != completed) {
      watch = {completed, now};
      continue;
    }
    if (now - watch.since < limits_.long_work) continue;
    any_long = true;
    if (now < rest_until_) continue;
    if (!holding_) {
      holding_ = true;
      hold_started_ = now;
    }
    held_[i].store(true, std::memory_order_relaxed);
  }
  return any_long;
}

void QuietWindow::release_holds() {
  if (!holding_) return;
  holding_ = false;
  for (std::atomic<bool>& held : held_) held.store(false, std::memory_order_relaxed);
  if (on_open_) on_open_();
}

// Nobody is inside a gate when this returns, and nobody enters.
void QuietWindow::close() {
  closed_.store(true, std::memory_order_seq_cst);  // pairs with Gate::enter
  for (Gate& gate : gates_) {
    for (unsigned spins = 0; gate.issuing_.load(std::memory_order_seq_cst); ++spins) {
      if (spins < kSpinsBeforeSleep) {
        proto::cpu_relax();
      } else {
        std::this_thread::sleep_for(kPollPause);  // a driver call takes long; the worker leaves as soon as it returns
      }
    }
  }
}

void QuietWindow::open() {
  if (shut_) return;
  closed_.store(false, std::memory_order_seq_cst);
  if (on_open_) on_open_();
}

void QuietWindow::shut() {
  shut_ = true;
  pending_.store(true, std::memory_order_relaxed);
  close();
  if (on_open_) on_open_();  // workers write the progress that is still due
}

// Nothing is issued any more: wait for what is in flight. False if it turns out to be long; the watch then knows since when.
bool QuietWindow::drain() {
  const Clock::time_point start = Clock::now();
  for (std::uint32_t i = 0; i < kProgressStreams; ++i) {
    for (unsigned spins = 0; is_busy(i); ++spins) {
      if (spins < kSpinsBeforeSleep) {
        proto::cpu_relax();
        continue;
      }
      const Clock::time_point now = Clock::now();
      if (now - start > 2 * limits_.long_work) {
        if (watch_[i].since == Clock::time_point{}) watch_[i] = {progress_.stream[i].completed.load(std::memory_order_relaxed), start};
        return false;
      }
      std::this_thread::yield();
    }
  }
  return true;
}

void QuietWindow::run_jobs() {
  std::vector<Pending> jobs;
  {
    std::lock_guard lock(mutex_);
    jobs.swap(jobs_);
  }
  std::stable_partition(jobs.begin(), jobs.end(), [](const Pending& pending) { return !pending.job.issues_work; });
  const Clock::time_point start = Clock::now();
  for (Pending& pending : jobs) {
    pending.job.run(WindowResult::open);
    log_debug("Session {}: {} ran in a quiet window, {} us after it was asked for", pending.job.session, pending.job.what,
              std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - pending.since).count());
  }
  log_debug("Quiet window: {} calls in {} us", jobs.size(), std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count());
  blocker_logged_ = false;
}

void QuietWindow::give_up_overdue(Clock::time_point now) {
  std::vector<Pending> overdue;
  {
    std::lock_guard lock(mutex_);
    const auto is_overdue = [&](const Pending& pending) { return !pending.job.deferrable && now - pending.since >= limits_.give_up; };
    const auto first = std::stable_partition(jobs_.begin(), jobs_.end(), [&](const Pending& pending) { return !is_overdue(pending); });
    std::move(first, jobs_.end(), std::back_inserter(overdue));
    jobs_.erase(first, jobs_.end());
  }
  for (Pending& pending : overdue) {
    log_warning("Session {}: no quiet window for {} within {} ms because a kernel does not end; the call is refused", pending.job.session,
                pending.job.what, limits_.give_up.count());
    pending.job.run(WindowResult::no_window);
  }
}

void QuietWindow::log_blocker(Clock::time_point now) {
  if (blocker_logged_) return;
  for (std::uint32_t i = 0; i < kProgressStreams; ++i) {
    if (watch_[i].since == Clock::time_point{} || now - watch_[i].since < limits_.name_in_log) continue;
    blocker_logged_ = true;
    log_warning("Session {}: its work in flight for more than {} ms keeps calls that wait for every kernel from running",
                progress_.stream[i].session.load(std::memory_order_relaxed), limits_.name_in_log.count());
    return;
  }
}

}  // namespace mpsshim::broker
