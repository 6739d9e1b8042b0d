// SPDX-License-Identifier: Apache-2.0
// What is done in a quiet window, what waits for one, and the times it goes by.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace mpsshim::broker {

enum class WindowResult : std::uint8_t {
  open,      // the job runs inside the window
  no_window  // none came for as long as one is waited for: somebody's kernel does not end; or the session is gone
};

struct WindowJob {
  const char* what = "";  // for the log, e.g. "cuModuleLoadData"
  std::uint64_t session = 0;
  bool deferrable = false;  // nobody waits for it (frees, unloads); run only with WindowResult::open
  std::function<void(WindowResult)> run;
  bool issues_work = false;     // its call starts a kernel: runs after all others, which would wait for that kernel
  std::size_t image_bytes = 0;  // of a load, for the log
  std::chrono::microseconds expected{0};  // what its call will take, where that may be long (LongJobs)
  bool presses = false;         // a deferrable one without which launches are slow: holds others from the start
  bool is_due = false;          // a deferrable one that holds nobody, and does not wait for the pause between such windows either
  std::function<void()> after{};  // then, once the window has closed and work goes on: what is long and needs none
};

// One that waits. Those that come after others no longer do once they have waited for WindowLimits::defer.
struct PendingJob {
  WindowJob job;
  std::chrono::steady_clock::time_point since;
  // The same, or since its session last had a turn: behind its own others nobody starves. So much later as windows have taken since.
  std::chrono::steady_clock::time_point turn_since;
  std::chrono::steady_clock::duration next_report{};  // as starving, after so long a wait for a turn
  std::size_t turn = 0;                               // of its session's jobs that wait: which one
};

// A call that gets no window because of another session's work.
struct StarvingCall {
  std::uint64_t session = 0;
  std::uint64_t blocker = 0;
  const char* what = "";
};

struct WindowLimits {
  std::chrono::microseconds long_work{1'000};      // a stream whose oldest unfinished work is older is long
  std::chrono::milliseconds very_long_work{100};   // of such a function one launch at a time is issued to a stream: else a window waits for several
  std::chrono::milliseconds hold_per_second{500};  // so much of a second may a session's streams stand idle because they are held
  std::chrono::milliseconds move_after{1'500};     // then another executor is asked for
  std::chrono::milliseconds report_again{30'000};  // at the latest, for as long as the call waits
  std::chrono::milliseconds give_up{600'000};      // then the call fails, if another session's work is what it waits for; 0: never
  std::chrono::milliseconds name_in_log{1'000};
  std::chrono::milliseconds defer{1'000};           // a deferrable job waits so long before it holds anybody, then does so for `move_after`
  std::chrono::milliseconds deferred_pause{50};     // between windows for deferrable jobs alone, while others work
  std::chrono::microseconds longest{1'000};         // a window: jobs that have not begun by then are for the next one
  std::chrono::microseconds longest_pause{2'000};   // between two, if somebody was kept out: as long as the last one was, at most this
  std::chrono::milliseconds let_in{10};             // and until each worker that was kept out has visited its sessions, at most this
};

}  // namespace mpsshim::broker
