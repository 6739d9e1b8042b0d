// SPDX-License-Identifier: Apache-2.0
// When may a driver call be made that waits for every running kernel of the context (docs/architecture.md, "Quiet window")?
// Only in a window: long-running streams are held one by one as their work ends, then all issuing stops for the moment it takes the short
// ones to drain, all pending jobs run together, and issuing goes on.
//
// Threads: workers call Gate and `holds`; any thread submits; one thread of this class runs the jobs with the context current.
// It trusts the progress table (private memory) and nothing a client can write.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "broker/progress_table.hpp"

namespace mpsshim::broker {

enum class WindowResult : std::uint8_t {
  open,      // the job runs inside the window
  no_window  // none came within the limit: somebody's kernel does not end
};

class QuietWindow {
 public:
  using Clock = std::chrono::steady_clock;
  struct Limits {
    std::chrono::microseconds long_work{1'000};   // a stream whose oldest unfinished work is older is long
    std::chrono::milliseconds hold_per_second{500};
    std::chrono::milliseconds give_up{2'000};
    std::chrono::milliseconds name_in_log{1'000};
  };
  struct Job {
    const char* what = "";       // for the log, e.g. "cuModuleLoadData"
    std::uint64_t session = 0;
    bool deferrable = false;     // waits for the next window however long it takes (frees, unloads); run only with WindowResult::open
    std::function<void(WindowResult)> run;
    bool issues_work = false;    // its call starts a kernel: runs after all others, which would wait for that kernel
  };

  // One for each worker. enter() before a batch of driver calls that issue work, leave() after; between them no window opens.
  // Progress is written outside the gate: the window waits for it, and once all is drained none is due.
  class Gate {
   public:
    [[nodiscard]] bool enter() {
      issuing_.store(true, std::memory_order_seq_cst);  // pairs with QuietWindow::close: either it sees us or we see it closed
      if (!window_->closed_.load(std::memory_order_seq_cst)) return true;
      leave();
      return false;
    }
    void leave() { issuing_.store(false, std::memory_order_release); }

   private:
    friend class QuietWindow;
    QuietWindow* window_ = nullptr;
    std::atomic<bool> issuing_{false};
  };

  QuietWindow(const ProgressTable& progress, unsigned workers, Limits limits, std::function<void()> enter_thread);
  QuietWindow(const QuietWindow&) = delete;
  ~QuietWindow();

  [[nodiscard]] Gate& gate(unsigned worker) { return gates_[worker]; }
  // True while new work of this executor stream must wait for the window. Workers ask before they issue from a queue.
  [[nodiscard]] bool holds(std::uint32_t progress_index) const { return held_[progress_index].load(std::memory_order_relaxed); }
  // True if issuing is stopped altogether or some stream is held: workers with held queues look again soon rather than sleep.
  [[nodiscard]] bool is_pending() const { return pending_.load(std::memory_order_relaxed); }
  // Called by the window thread after it opened again, so that sleeping workers look at their queues.
  void set_on_open(std::function<void()> on_open) { on_open_ = std::move(on_open); }

  void submit(Job job);
  // Nothing is issued from now on, for good: this executor is about to be replaced and its work in flight is given time to end.
  void shut();

 private:
  struct Pending {
    Job job;
    Clock::time_point since;
  };
  struct StreamWatch {
    std::uint32_t completed = 0;
    Clock::time_point since{};
  };

  void loop();
  void serve();
  [[nodiscard]] bool hold_long_streams(Clock::time_point now);
  [[nodiscard]] bool drain();
  void close();
  void open();
  void release_holds();
  void run_jobs();
  void give_up_overdue(Clock::time_point now);
  [[nodiscard]] bool is_busy(std::uint32_t index) const;
  void log_blocker(Clock::time_point now);

  const ProgressTable& progress_;
  const Limits limits_;
  std::vector<Gate> gates_;
  std::array<std::atomic<bool>, kProgressStreams> held_{};
  std::array<StreamWatch, kProgressStreams> watch_{};
  std::atomic<bool> closed_{false};
  std::atomic<bool> shut_{false};
  std::atomic<bool> pending_{false};
  std::function<void()> enter_thread_;
  std::function<void()> on_open_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Pending> jobs_;
  bool stopping_ = false;
  Clock::time_point hold_started_{};
  Clock::time_point rest_until_{};
  bool holding_ = false;
  bool blocker_logged_ = false;
  std::thread thread_;
};

}  // namespace mpsshim::broker
