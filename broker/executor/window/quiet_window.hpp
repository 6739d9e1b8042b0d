// SPDX-License-Identifier: Apache-2.0
// When may a driver call be made that waits for every running kernel of the context (docs/scheduling.md, "Quiet windows")?
// Only in a window: long-running streams are held one by one as their work ends, then all issuing stops for the moment it takes the short
// ones to drain, all pending jobs run together, and issuing goes on. Jobs that nobody waits for (deferrable) run along with others', or
// when a window costs next to nothing; only after a while do they hold anybody.
//
// Threads: workers call their gates, `holds` and `note_launch`; any thread submits; one thread of this class runs the jobs, the context current.
// It trusts the progress table (private memory) and nothing a client can write.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <thread>
#include <utility>

#include "broker/driver/driver.hpp"
#include "broker/executor/window/gates.hpp"
#include "broker/executor/window/long_jobs.hpp"
#include "broker/executor/window/stream_watch.hpp"
#include "broker/executor/window/window_job.hpp"
#include "proto/cond_var.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class QuietWindow {
 public:
  using Clock = StreamWatch::Clock;
  using Limits = WindowLimits;
  using Job = WindowJob;

  using Gate = broker::Gate;

  QuietWindow(const ProgressTable& progress, unsigned workers, Limits limits, std::function<void()> enter_thread);
  QuietWindow(const QuietWindow&) = delete;
  ~QuietWindow();

  // All three before the first job. The second is called by the window thread after it opened again, so that sleeping workers look at their
  // queues; the third for a call that got no window within `move_after`, because of another session's work, and again from time to time.
  void set_used_streams(std::function<std::uint32_t()> used) { watch_.set_used(std::move(used)); }
  void set_on_open(std::function<void()> on_open) { on_open_ = std::move(on_open); }
  using Starving = StarvingCall;
  using Starved = std::function<void(const Starving&)>;
  void set_on_starved(Starved on_starved) { on_starved_ = std::move(on_starved); }

  [[nodiscard]] Gate& gate(unsigned worker) { return gates_.of(worker); }
  // True while new work of this executor stream must wait for the window. Workers ask before they issue from a queue; `function` is that of
  // the launch they are about to make, or nullptr.
  [[nodiscard]] bool holds(std::uint32_t progress_index, const void* function) { return watch_.holds(progress_index, function); }
  // The stream's latest work is this function's, or (nullptr) no launch.
  void note_launch(std::uint32_t progress_index, const void* function) { watch_.note_launch(progress_index, function); }
  // Launches of this function are issued one by one, each once the stream is idle (`holds` says so).
  [[nodiscard]] bool is_very_long(const void* function) const { return watch_.is_very_long(function); }
  // Learns how long functions run. Any thread, now and then while the device works.
  void observe() { watch_.observe(Clock::now()); }
  // The result of `ask`, a driver call that changes a function of clients' or reads what others change, while no worker is inside its gate and no
  // other thread in sharing(): the driver does not keep such calls apart from launches of that function in other contexts, and kernels were
  // seen to get wrong arguments beside them (docs/experiments/2026-11-23-shared-functions.md). Any thread that is in neither; nothing is drained.
  template <typename F>
  [[nodiscard]] CUresult exclusively(F&& ask) {
    return gates_.exclusively(std::forward<F>(ask));
  }
  // For what launches functions or puts them into graphs outside a gate; several threads at once. Before any IssueLock, never inside a gate.
  template <typename F>
  [[nodiscard]] CUresult sharing(F&& launch) {
    return gates_.sharing(std::forward<F>(launch));
  }
  // True if issuing is stopped altogether or some stream is held: workers with held queues look again soon rather than sleep.
  [[nodiscard]] bool is_pending() const { return pending_.load(std::memory_order_relaxed); }

  void submit(Job job);
  // The session's calls that still wait for a window get WindowResult::no_window now: it is served elsewhere, or nowhere.
  void cancel(std::uint64_t session);
  // No window from now on, for good: this executor is about to be replaced and its work is given time to end. Workers write progress at once.
  void shut();
  // For tests that say when, of one that is shut: its jobs, in the caller's thread, which is in no gate. False: something is in flight.
  bool open_by_hand();

 private:
  using Pending = PendingJob;
  struct Demand {
    bool any = false;
    bool held_back = false;    // some are, by LongJobs: they count for nothing else
    bool pressing = false;     // somebody waits, or has waited long enough
    bool is_due = false;       // no pause is to be made between windows
    Clock::duration waited{};  // the oldest call
  };

  void loop();
  void serve();
  [[nodiscard]] Demand demand(Clock::time_point now);
  [[nodiscard]] bool presses(const Pending& pending, Clock::time_point now) const;
  void set_pressing(const Demand& wanted);
  void pause(bool pressing);
  [[nodiscard]] bool drain();
  void open();
  [[nodiscard]] std::list<Pending> run_jobs();
  static void finish(const std::list<Pending>& done);  // when work goes on
  void take_turns(std::list<Pending>& jobs, Clock::time_point now) const;
  void run(Pending& pending);
  void look_at_starving(Clock::time_point now);
  void refuse(std::list<Pending> jobs, const char* why);
  template <typename Predicate>
  [[nodiscard]] std::list<Pending> take_jobs(Predicate&& predicate);
  [[nodiscard]] bool is_held_back(const WindowJob& job, Clock::time_point now) const { return !shut_ && long_jobs_.holds_back(job, now); }
  void log_blocker(Clock::time_point now);

  const Limits limits_;
  LongJobs long_jobs_;
  StreamWatch watch_;  // the window's thread, but for holds and note_launch
  Gates gates_;
  std::atomic<bool> shut_{false};
  std::atomic<bool> pending_{false};
  std::function<void()> enter_thread_;
  std::function<void()> on_open_;
  Starved on_starved_;

  // The window's thread alone has these.
  Clock::time_point last_window_{};
  Clock::duration pause_after_last_{};  // so that those who were kept out of it get on
  bool blocker_logged_ = false;

  Mutex mutex_;
  CondVar changed_;
  std::list<Pending> jobs_ GUARDED_BY(mutex_);
  std::uint64_t arrivals_ GUARDED_BY(mutex_) = 0;  // of jobs, so that a pause ends early
  std::uint64_t seen_arrivals_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace mpsshim::broker
