// SPDX-License-Identifier: Apache-2.0
// Faults and their suspects, until the suspects' programs are known and Quarantine can weigh them; then who is in quarantine, and how long. A client
// that faults at once may have gone before its program is known (ProgramReader).
// Owned by SessionManager; the control process's thread. Knows no sessions: whose programs they are is the caller's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/faults/program_reader.hpp"
#include "broker/control/faults/quarantine.hpp"

namespace mpsshim::broker::control {

class FaultLedger {
 public:
  using Programs = std::vector<std::shared_ptr<const ClientProgram>>;
  struct Events {
    std::function<void()> programs_known;  // some more of them
    std::function<void(const Ward&)> released;
  };
  FaultLedger(EventLoop& loop, const QuarantineLimits& limits, Events events);

  [[nodiscard]] ProgramReader& programs() { return programs_; }
  // One fault, or what is worth `weight` of them, with the programs of its suspects.
  void note_fault(Programs suspects, double weight = 1);
  void note_good(const ClientProgram& program);  // a client of it has ended without an error
  // The smallest that the program is in, as far as it is known.
  [[nodiscard]] std::optional<Ward> ward_of(const ClientProgram& program) const { return quarantine_.ward_of(program.program); }
  [[nodiscard]] bool is_weighing() const { return !suspicions_.empty(); }  // until all programs of the suspects are known
  // Whether it matters for this user's faults what a newcomer of it runs.
  [[nodiscard]] bool concerns(uid_t user) const;
  // For a hand-over.
  void save(StateWriter& state) const { quarantine_.save(state); }
  void restore(StateReader& state);

 private:
  struct Suspicion {
    EventLoop::Clock::time_point when;
    double weight = 1;
    Programs programs;
  };
  void weigh();
  void arm_release();

  EventLoop& loop_;
  const QuarantineLimits limits_;
  const Events events_;
  Quarantine quarantine_;
  std::vector<Suspicion> suspicions_;
  ProgramReader programs_;
  EventLoop::Timer release_timer_;
};

}  // namespace mpsshim::broker::control
