// SPDX-License-Identifier: Apache-2.0
// When a worker without work is awake all the same, because one of its sessions is about to send something (ArrivalForecast): until when it sleeps,
// that clients need not ring meanwhile, and the empty launch that makes the way through the driver warm (docs/scheduling.md, "Awake at the right
// moment"). A part of Worker, used by its thread alone.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>

#include "broker/executor/chains/chain.hpp"
#include "broker/executor/context/parts.hpp"
#include "broker/executor/sessions/arrival_forecast.hpp"
#include "broker/executor/window/quiet_window.hpp"

namespace mpsshim::broker {

class Session;

class LookOut {
 public:
  using Clock = std::chrono::steady_clock;
  using Sessions = std::span<const std::shared_ptr<Session>>;

  LookOut(ExecutorParts& parts, QuietWindow::Gate& gate) : parts_(parts), gate_(gate), chains_(parts, parts.chain_pool) {}
  LookOut(const LookOut&) = delete;

  // Those that had something to do have nothing for the moment: who of all is expected next.
  void fall_quiet(Sessions sessions, Clock::time_point now);
  // The ring of a session that was quiet has something. Its client has not rung for it if the worker was awake for that; so the fault watch, which
  // listens to the same doorbells, is told by the next fall_quiet(), once the work is on its way.
  void note_arrival(Session& session);
  // Whether somebody's next record is so near that sleeping is not worth it. Clients need not ring then. Looks further once a window is over.
  [[nodiscard]] bool is_due(Sessions sessions, Clock::time_point now);
  // Whoever fell quiet last is expected: spinning on for a chance is not worth it.
  [[nodiscard]] bool are_all_foreseen() const { return are_foreseen_; }

  // The worker goes to sleep, at most for so long; how long it is to be.
  [[nodiscard]] Clock::duration begin_sleep(Clock::time_point now, Clock::duration limit);
  // It was woken by nobody. How late its timer was decides how early it wakes the next time.
  void end_sleep(Clock::time_point now);

 private:
  static constexpr std::chrono::microseconds kFirstLateness{20};
  static constexpr std::chrono::microseconds kMostLateness{200};
  static constexpr std::chrono::microseconds kNotWorthSleeping{40};
  static constexpr std::chrono::microseconds kColdAfter{500};
  static constexpr std::chrono::milliseconds kLongQuiet{50};  // the fault watch may have gone to sleep by then

  void warm_up();

  ExecutorParts& parts_;
  QuietWindow::Gate& gate_;
  ChainCache chains_;                               // of warm_up()
  std::optional<ArrivalForecast::Window> expected_;  // the earliest that is not over
  Clock::time_point fell_quiet_{};                  // somebody, last
  Clock::time_point wakes_at_{};                    // a sleep's end that is for a window; zero: it is not
  bool is_warm_ = false;                            // for the window expected
  bool are_foreseen_ = false;
  bool has_slept_ = false;                          // since clients need not ring
  bool owes_ring_ = false;                          // to the fault watch
  Clock::duration lateness_{kFirstLateness};        // of wake-ups by time, of late
};

}  // namespace mpsshim::broker
