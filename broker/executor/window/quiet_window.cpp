// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/window/quiet_window.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <pthread.h>

#include "broker/executor/base/scoped_call.hpp"
#include "broker/executor/base/thread_priority.hpp"
#include "broker/log.hpp"
#include "proto/futex.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::chrono::microseconds kPollPause{50};     // while somebody waits
constexpr std::chrono::milliseconds kPatientPause{10};  // while only deferrable jobs wait and nobody is pressed
constexpr unsigned kSpinsBeforeSleep = 2'000;

long long microseconds(std::chrono::steady_clock::duration time) { return std::chrono::duration_cast<std::chrono::microseconds>(time).count(); }

}  // namespace

QuietWindow::QuietWindow(const ProgressTable& progress, unsigned workers, Limits limits, std::function<void()> enter_thread)
    : limits_(limits), long_jobs_(progress), watch_(progress, limits_), gates_(workers), enter_thread_(std::move(enter_thread)) {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "window");
    serve_before_others();
    loop();
  });
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
    const Clock::time_point now = Clock::now();
    jobs_.push_back({std::move(job), now, now, limits_.move_after});
    ++arrivals_;
  }
  changed_.notify_all();
}

void QuietWindow::loop() {
  enter_thread_();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this]() REQUIRES(mutex_) { return stopping_ || (!jobs_.empty() && !shut_); });
    if (stopping_) return;
    lock.unlock();
    serve();
    lock.lock();
  }
}

// Until no job is left: hold what runs long, then close, drain the rest, run the jobs.
void QuietWindow::serve() {
  for (;;) {
    const Clock::time_point now = Clock::now();
    const Demand wanted = demand(now);
    if (wanted.held_back) long_jobs_.look(watch_.used(), now);
    if (!wanted.any && !wanted.held_back) break;
    set_pressing(wanted);
    if (!wanted.any) {
      pause(false);
      continue;
    }
    const StreamWatch::Scan scan = watch_.scan(now);
    if (scan.any_long) {
      look_at_starving(now);
      log_blocker(now);
      pause(wanted.pressing);
      continue;
    }
    if (!wanted.pressing && !wanted.is_due && scan.any_busy && now - last_window_ < limits_.deferred_pause) {
      pause(false);
      continue;
    }
    if (now - last_window_ < pause_after_last_) {
      std::this_thread::sleep_for(pause_after_last_ - (now - last_window_));
      continue;
    }
    if (now - last_window_ < limits_.let_in && gates_.keep_out()) {  // a worker that slept may take longer to wake up than windows are apart
      std::this_thread::sleep_for(kPollPause);
      continue;
    }
    pending_.store(true, std::memory_order_relaxed);
    gates_.close();
    const std::list<Pending> done = drain() ? run_jobs() : std::list<Pending>();
    if (!done.empty()) watch_.give_turns();
    open();
    finish(done);
  }
  set_pressing({});
  if (on_open_) on_open_();
}

bool QuietWindow::presses(const Pending& pending, Clock::time_point now) const {
  if (!pending.job.deferrable) return true;
  const Clock::duration age = now - pending.since;
  const Clock::duration patience = pending.job.presses ? Clock::duration(0) : Clock::duration(limits_.defer);
  return age >= patience && age < patience + limits_.move_after;
}

QuietWindow::Demand QuietWindow::demand(Clock::time_point now) {
  std::lock_guard lock(mutex_);
  seen_arrivals_ = arrivals_;
  Demand wanted;
  if (stopping_ || shut_) return wanted;
  for (const Pending& pending : jobs_) {
    if (is_held_back(pending.job, now)) {
      wanted.held_back = true;
      continue;
    }
    wanted.any = true;
    wanted.pressing |= presses(pending, now);
    wanted.is_due |= pending.job.is_due;
    if (!pending.job.deferrable) wanted.waited = std::max(wanted.waited, now - pending.turn_since);
  }
  return wanted;
}

void QuietWindow::set_pressing(const Demand& wanted) {
  if (!wanted.pressing) {
    const bool was = pending_.exchange(shut_, std::memory_order_relaxed);
    watch_.set_pressing(false);
    if (was && on_open_) on_open_();
    return;
  }
  watch_.set_pressing(true, wanted.waited);
  pending_.store(true, std::memory_order_relaxed);
}

void QuietWindow::pause(bool pressing) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, pressing ? Clock::duration(kPollPause) : Clock::duration(kPatientPause),
                    [this]() REQUIRES(mutex_) { return stopping_ || arrivals_ != seen_arrivals_; });
}

void QuietWindow::open() {
  gates_.open();
  if (on_open_) on_open_();
}

void QuietWindow::shut() {
  {
    const std::lock_guard lock(mutex_);
    shut_ = true;
  }
  pending_.store(true, std::memory_order_relaxed);
  changed_.notify_all();
  if (on_open_) on_open_();  // workers write the progress that is still due
}

bool QuietWindow::open_by_hand() {
  for (std::uint32_t i = 0; i < watch_.used(); ++i) {
    if (!shut_ || watch_.is_busy(i)) return false;
  }
  gates_.bar();
  const std::list<Pending> done = run_jobs();
  gates_.open();
  finish(done);
  return true;
}

// Nothing is issued any more: wait for what is in flight. False if it turns out to be long; the watch then knows since when.
bool QuietWindow::drain() {
  const Clock::time_point start = Clock::now();
  const std::uint32_t count = watch_.used();
  for (std::uint32_t i = 0; i < count; ++i) {
    for (unsigned spins = 0; watch_.is_busy(i); ++spins) {
      if (spins < kSpinsBeforeSleep) {
        proto::cpu_relax();
        continue;
      }
      if (Clock::now() - start > limits_.long_work) {
        watch_.found_long(i, start);
        return false;
      }
      std::this_thread::yield();
    }
  }
  return true;
}

// Calls that somebody waits for first, and others that have waited long enough with them: calls without end must not keep those from being made.
// Sessions have turns, a job each, those of the same kind in the order they came.
void QuietWindow::take_turns(std::list<Pending>& jobs, Clock::time_point now) const {
  const auto rank = [&](const Pending& pending) {
    return pending.job.issues_work ? 2 : pending.job.deferrable && now - pending.since < limits_.defer ? 1 : 0;
  };
  std::map<std::pair<int, std::uint64_t>, std::size_t> so_far;
  for (Pending& pending : jobs) pending.turn = so_far[{rank(pending), pending.job.session}]++;
  jobs.sort([&](const Pending& a, const Pending& b) { return std::pair(rank(a), a.turn) < std::pair(rank(b), b.turn); });
}

// A window is short, whether or not anybody has work when it begins: what has not begun in time is for the next one, behind a pause as long as this
// one was if somebody was kept out. Returns those that were run; what they hold goes when work goes on.
std::list<QuietWindow::Pending> QuietWindow::run_jobs() {
  const proto::trace::Span span("window", "quiet window");
  const Clock::time_point start = Clock::now();
  std::list<Pending> jobs = take_jobs([&](const Pending& pending) { return !is_held_back(pending.job, start); });
  take_turns(jobs, start);
  std::size_t image_bytes = 0;
  std::list<Pending> done;
  std::list<Pending> later;
  bool owes_launch = true;  // one that has waited long enough ends a window however full that is: behind it nothing else is run
  for (auto next = jobs.begin(); next != jobs.end();) {
    const auto here = next++;
    Pending& pending = *here;
    bool is_late = Clock::now() - start > limits_.longest || is_held_back(pending.job, start);  // by one that has just run
    if (pending.job.issues_work && start - pending.since >= limits_.defer) is_late = !std::exchange(owes_launch, false);
    if (!done.empty() && is_late) {
      later.splice(later.end(), jobs, here);
      continue;
    }
    image_bytes = std::max(image_bytes, pending.job.image_bytes);
    run(pending);
    done.splice(done.end(), jobs, here);
  }
  last_window_ = Clock::now();
  pause_after_last_ = gates_.keep_out() ? std::min<Clock::duration>(last_window_ - start, limits_.longest_pause) : Clock::duration::zero();
  log_debug("Quiet window: {} calls in {} us, largest image {} KiB, {} calls left for another", done.size(),
            microseconds(last_window_ - start), image_bytes / 1024, later.size());
  blocker_logged_ = false;
  std::lock_guard lock(mutex_);
  jobs_.splice(jobs_.begin(), later);
  std::set<std::uint64_t> had_turns;
  for (const Pending& pending : done) had_turns.insert(pending.job.session);
  for (Pending& pending : jobs_) {
    pending.turn_since += last_window_ - std::max(start, pending.turn_since);  // nobody starves of others' work while others' calls are made
    if (!had_turns.contains(pending.job.session)) continue;
    pending.turn_since = last_window_;
    pending.next_report = limits_.move_after;
  }
  return done;
}

void QuietWindow::finish(const std::list<Pending>& done) {
  for (const Pending& pending : done) {
    if (pending.job.after) pending.job.after();
  }
}

void QuietWindow::run(Pending& pending) {
  const proto::trace::Span span("window", pending.job.what, {"session", pending.job.session});
  const ScopedMark mark(pending.job.session, CallName::of(pending.job.what), Patience::patient);
  const Clock::time_point start = Clock::now();
  pending.job.run(WindowResult::open);
  const Clock::time_point end = Clock::now();
  long_jobs_.note(pending.job, end - start, end);
  log_debug("Session {}: {} took {} us in a quiet window, {} us after it was asked for", pending.job.session, pending.job.what,
            microseconds(end - start), microseconds(end - pending.since));
}

template <typename Predicate>
std::list<QuietWindow::Pending> QuietWindow::take_jobs(Predicate&& predicate) {
  std::list<Pending> taken;
  std::lock_guard lock(mutex_);
  for (auto next = jobs_.begin(); next != jobs_.end();) {
    const auto here = next++;
    if (predicate(*here)) taken.splice(taken.end(), jobs_, here);
  }
  return taken;
}

void QuietWindow::refuse(std::list<Pending> jobs, const char* why) {
  for (Pending& pending : jobs) {
    log_warning("Session {}: no quiet window for {} within {} ms: {}", pending.job.session, pending.job.what,
                microseconds(Clock::now() - pending.since) / 1000, why);
    pending.job.run(WindowResult::no_window);
  }
}

void QuietWindow::cancel(std::uint64_t session) {
  refuse(take_jobs([&](const Pending& pending) { return !pending.job.deferrable && pending.job.session == session; }),
         "no executor serves the call, it fails");
}

// A call that waits for its own session's work waits as the driver would. Another session's work is a reason to go elsewhere; who cannot waits on,
// for as long as work that ends some time may take.
void QuietWindow::look_at_starving(Clock::time_point now) {
  struct Report {
    Starving starving;
    Clock::duration waited;
  };
  std::vector<Report> reports;
  refuse(take_jobs([&](Pending& pending) {
           const Clock::duration waited = now - pending.turn_since;
           if (pending.job.deferrable || waited < pending.next_report) return false;
           const auto blocker = watch_.blocker(now, pending.job.session);
           if (!blocker) return false;
           if (limits_.give_up.count() != 0 && waited >= limits_.give_up) return true;
           pending.next_report = waited + std::min<Clock::duration>(waited, limits_.report_again);
           if (limits_.give_up.count() != 0) pending.next_report = std::min<Clock::duration>(pending.next_report, limits_.give_up);
           reports.push_back({{pending.job.session, blocker->session, pending.job.what}, waited});
           return false;
         }),
         "another session's kernel does not end; the call is refused (--patience-s)");
  for (const Report& report : reports) {
    log_warning("Session {}: {} has had no quiet window for {} ms, because work of session {} does not end", report.starving.session,
                report.starving.what, microseconds(report.waited) / 1000, report.starving.blocker);
    if (on_starved_) on_starved_(report.starving);
  }
}

void QuietWindow::log_blocker(Clock::time_point now) {
  const auto blocker = watch_.blocker(now, 0);
  if (blocker_logged_ || !blocker || now - blocker->since < limits_.name_in_log) return;
  blocker_logged_ = true;
  log_warning("Session {}: its kernel has run for more than {} ms and keeps calls that wait for every kernel from being made", blocker->session,
              limits_.name_in_log.count());
}

}  // namespace mpsshim::broker
