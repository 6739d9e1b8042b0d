// SPDX-License-Identifier: Apache-2.0
#include "broker/control/faults/fault_ledger.hpp"

#include <algorithm>
#include <utility>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

FaultLedger::FaultLedger(EventLoop& loop, const QuarantineLimits& limits, Events events)
    : loop_(loop), limits_(limits), events_(std::move(events)), quarantine_(limits), programs_(loop, [this] {
        weigh();
        events_.programs_known();
      }) {}

void FaultLedger::note_fault(Programs suspects, double weight) {
  suspicions_.push_back({EventLoop::Clock::now(), weight, std::move(suspects)});
  weigh();
}

void FaultLedger::note_good(const ClientProgram& program) {
  if (program.is_known) quarantine_.note_good(program.program);
}

void FaultLedger::weigh() {
  std::erase_if(suspicions_, [&](const Suspicion& suspicion) {
    if (!std::ranges::all_of(suspicion.programs, [](const auto& program) { return program->is_known; })) return false;
    std::vector<ProgramIdentity> programs;
    for (const auto& program : suspicion.programs) programs.push_back(program->program);
    for (const Ward& ward : quarantine_.note_fault(programs, suspicion.when, suspicion.weight)) {
      log_warning(
          "{} has cost others {} faults within {} s and is in quarantine: next clients get an executor of their own, until there has been none for "
          "{} s (--quarantine-faults, --quarantine-s).",
          ward.name(), limits_.faults, limits_.window.count(), limits_.window.count());
    }
    return true;
  });
  arm_release();
}

bool FaultLedger::concerns(uid_t user) const {
  const auto is_the_users = [&](const auto& program) { return program->program.uid == user; };
  const auto may_concern = [&](const Suspicion& suspicion) { return std::ranges::any_of(suspicion.programs, is_the_users); };
  return quarantine_.concerns(user) || std::ranges::any_of(suspicions_, may_concern);
}

void FaultLedger::restore(StateReader& state) {
  quarantine_.restore(state);
  arm_release();
}

void FaultLedger::arm_release() {
  const auto next = quarantine_.next_release();
  if (next == EventLoop::Clock::time_point::max()) return release_timer_.reset();
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(std::max(next - EventLoop::Clock::now(), EventLoop::Clock::duration::zero()));
  release_timer_ = loop_.after(wait, [this] {
    for (const Ward& ward : quarantine_.release(EventLoop::Clock::now())) {
      events_.released(ward);
      log_info("{} leaves quarantine: there has been no fault for {} s.", ward.name(), limits_.window.count());
    }
    arm_release();
  });
}

}  // namespace mpsshim::broker::control
