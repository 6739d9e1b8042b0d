// SPDX-License-Identifier: Apache-2.0
#include "broker/control/placement/relocations.hpp"

#include <algorithm>
#include <utility>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

Relocations::Relocations(EventLoop& loop, const SessionLimits& limits, SessionTable& sessions, ExecutorChoice& choice, const Kinds& kinds,
                         Blockers& blockers, SessionRanges& ranges, LoadReplays& replays, std::function<bool()> may_move)
    : loop_(loop),
      limits_(limits),
      sessions_(sessions),
      choice_(choice),
      kinds_(kinds),
      blockers_(blockers),
      ranges_(ranges),
      replays_(replays),
      may_move_(std::move(may_move)) {
  if (limits_.relocate_for_tests.count() != 0) {
    timer_for_tests_ = loop_.after(limits_.relocate_for_tests, [this] { begin_one_for_tests(); });
  }
}

std::string Relocations::name_of(std::uint64_t id) const {
  const ClientSession* const session = std::as_const(sessions_).find(id);
  return session == nullptr ? "a client that is gone" : session->name();
}

void Relocations::starved(ManagedExecutor& executor, const message::Starved& report) {
  executor.note_blocked(report.session);
  ClientSession* session = sessions_.find(report.session);
  if (session == nullptr || session->executor != &executor || session->phase != SessionPhase::active || session->relocation) return;
  if ((report.flags & kStarvesInPlace) != 0 || session->is_bound) {
    return log_warning("{}: {} waits in executor {} for work of {} to end (--patience-s); what the session has cannot go to another executor.",
                       session->name(), report.text, executor.label(), name_of(report.blocker));
  }
  const bool waits_for_itself = report.blocker == session->id;
  if (!waits_for_itself && kinds_.block_their_share(*session)) return stay(*session, "kernels of its own kind block all executors but the last");
  ManagedExecutor* to = waits_for_itself ? nullptr : choice_.other_than(executor, *session);
  if (to == nullptr) {
    return stay(*session, !waits_for_itself && blockers_.end_one_for(*session) ? "one is to be freed for it" : "no other executor can be had");
  }
  log_warning("{}: {} cannot be made in executor {} while work of {} runs on; it moves to executor {}.", session->name(), report.text,
              executor.label(), name_of(report.blocker), to->label());
  session->relocation.emplace();
  begin(*session, *to);
}

// Before it has anything on that heap, which would keep it from moving.
void Relocations::heap_wanted(ManagedExecutor& executor, const message::HeapWanted& report) {
  ClientSession* const session = sessions_.find(report.session);
  if (session == nullptr || session->executor != &executor || session->phase != SessionPhase::active || session->wants_heap) return;
  session->wants_heap = true;
  if (choice_.has_blank_heap(executor)) return give_heap(*session, nullptr);
  if ((report.flags & kStarvesInPlace) != 0 || session->is_bound) return give_heap(*session, "what it has cannot go to another executor");
  if (!session->relocation) seek_blank_heap(*session);  // else it goes to another anyway, or stay() follows
}

void Relocations::seek_blank_heap(ClientSession& session) {
  if (!may_move_()) return give_heap(session, "executors are being restarted");
  ManagedExecutor* const to = choice_.other_than(*session.executor, session, [this](const auto& other) { return choice_.has_blank_heap(other); });
  if (to == nullptr) return give_heap(session, "no other executor can be had (--executors, or the GPU's compute mode)");
  log_info("{}: may use the device's heap, where clients that have ended have left something in executor {}; it moves to executor {}.",
           session.name(), session.executor->label(), to->label());
  session.relocation.emplace().reason = SessionRelocation::Reason::blank_heap;
  begin(session, *to);
}

// `why` it has to be this one; nullptr: it is blank.
void Relocations::give_heap(ClientSession& session, const char* why) {
  session.wants_heap = false;
  if (why != nullptr) {
    log_warning("{}: its kernels' malloc() may find what clients that have ended have left on the device's heap of executor {}, because {}.",
                session.name(), session.executor->label(), why);
  }
  session.executor->send(message::HeapGiven{.session = session.id});
}

void Relocations::begin(ClientSession& session, ManagedExecutor& to) {
  session.relocation->to = &to;
  session.relocation->has_variables = session.variables.valid();
  if (to.state() == ExecutorState::active) return ask_for_pause(session);
  session.relocation->limit = loop_.after(limits_.answer, [this, id = session.id] { stay(sessions_.at(id), "the other executor is not ready"); });
}

// One after the other: the first behind the one whose turn it was last that can move.
void Relocations::begin_one_for_tests() {
  timer_for_tests_ = loop_.after(limits_.relocate_for_tests, [this] { begin_one_for_tests(); });
  if (!may_move_()) return;
  const auto can_move = [](const ClientSession& session) {
    return session.phase == SessionPhase::active && !session.relocation && !session.is_bound && session.executor->state() == ExecutorState::active;
  };
  auto next = sessions_.all().upper_bound(last_for_tests_);
  for (std::size_t looked = 0; looked < sessions_.size(); ++looked, ++next) {
    if (next == sessions_.all().end()) next = sessions_.all().begin();
    if (can_move(next->second)) break;
  }
  if (next == sessions_.all().end() || !can_move(next->second)) return;
  ClientSession& session = next->second;
  last_for_tests_ = session.id;
  ManagedExecutor* const to = choice_.other_than(*session.executor, session);
  if (to == nullptr) return;
  log_info("{}: for tests it moves from executor {} to executor {}.", session.name(), session.executor->label(), to->label());
  session.relocation.emplace().reason = SessionRelocation::Reason::for_tests;
  begin(session, *to);
}

bool Relocations::leave_probation(ClientSession& session) {
  if (session.phase != SessionPhase::active || session.relocation || session.is_bound || !may_move_()) return false;
  ManagedExecutor* const to = choice_.out_of_probation(session);
  if (to == nullptr) return false;
  log_info("{}: its program is no longer on probation; it moves from executor {} to executor {}.", session.name(), session.executor->label(),
           to->label());
  session.relocation.emplace().reason = SessionRelocation::Reason::probation_over;
  begin(session, *to);
  return true;
}

bool Relocations::leave_collective(ClientSession& session, const ClientSession& neighbour) {
  if (session.phase != SessionPhase::active || session.relocation || session.is_bound || !may_move_()) return false;
  ManagedExecutor* const to = choice_.other_than(*session.executor, session, [&](const ManagedExecutor& other) {
    return std::ranges::none_of(sessions_.all(), [&](const auto& entry) {
      const ClientSession& there = entry.second;
      const bool is_there = (there.executor == &other && there.in_executor()) || (there.relocation && there.relocation->to == &other);
      return is_there && there.collective != 0 && there.collective != session.collective;
    });
  });
  if (to == nullptr) return false;
  log_info("{}: reaches memory of other devices, as {} does in executor {}; it moves to executor {}.", session.name(), neighbour.name(),
           session.executor->label(), to->label());
  session.relocation.emplace().reason = SessionRelocation::Reason::collective;
  begin(session, *to);
  return true;
}

void Relocations::serve(const ManagedExecutor& executor) {
  for (auto& [id, session] : sessions_.all()) {
    if (session.relocation && session.relocation->to == &executor && !session.relocation->asked) ask_for_pause(session);
  }
}

void Relocations::cannot_start(const ManagedExecutor& executor) {
  for (auto& [id, session] : sessions_.all()) {
    if (session.relocation && session.relocation->to == &executor) stay(session, "the other executor cannot be had");
  }
}

void Relocations::ask_for_pause(ClientSession& session) {
  session.relocation->order = ++last_order_;
  const std::uint32_t flags = session.relocation->has_variables ? 0 : kPauseWithoutVariables;
  session.executor->send(message::SessionPause{.session = session.id, .order = session.relocation->order, .flags = flags});
  session.relocation->asked = true;
  session.event_times.reset();
  session.relocation->limit = loop_.after(limits_.pause, [this, id = session.id] { stay(sessions_.at(id), "work of its own does not end"); });
}

// With CUDA_SUCCESS its executor serves it no more, until it is told that the session stays. An answer to an order that was called off says nothing.
void Relocations::paused(ClientSession& session, const message::SessionPaused& answer) {
  const auto status = static_cast<CUresult>(answer.status);
  if (session.phase != SessionPhase::active || !session.relocation || session.relocation->order != answer.order) return;
  if (status != CUDA_SUCCESS) return stay(session, "what it has cannot go to another executor");
  session.event_times_hold = true;
  if (session.relocation->has_variables) return check_variables(session);
  leave(session);
}

// The other executor makes the loads now, not before: until it was paused the session may have made more. Then it is asked whether the variables
// have come to the addresses that the client knows.
void Relocations::check_variables(ClientSession& session) {
  ManagedExecutor& to = *session.relocation->to;
  if (to.state() != ExecutorState::active) return stay(session, "the other executor is not ready");
  session.relocation->has_copies = true;
  replays_.copy_log(session, *session.executor, to);
  replays_.replay(to, *to.serving());
  to.send({message::VariablesCheck{.session = session.id, .order = session.relocation->order}, {.variables = session.variables.get()}});
  session.relocation->limit = loop_.after(limits_.answer, [this, id = session.id] { stay(sessions_.at(id), "the other executor is not ready"); });
}

void Relocations::variables_checked(const ManagedExecutor& executor, const message::VariablesChecked& answer) {
  ClientSession* const session = sessions_.find(answer.session);
  if (session == nullptr || session->phase != SessionPhase::active || !session->relocation) return;
  if (session->relocation->to != &executor || session->relocation->order != answer.order) return;
  if (answer.status == CUDA_SUCCESS) return leave(*session);
  session->is_bound = true;
  stay(*session, "its modules' variables or functions would come to other addresses there");
}

void Relocations::leave(ClientSession& session) {
  ManagedExecutor& from = *session.executor;
  ManagedExecutor* const to = session.relocation->to;
  session.relocation.reset();
  session.forget_executor();
  session.channel->tell_moved();  // before the close: what its executor still answers is for nobody from here on
  from.send(message::SessionClose{.session = session.id});
  ranges_.left_behind(from, session.id);
  session.executor = to;
  session.phase = SessionPhase::moved;
  session.delivered = false;
  choice_.let_go_if_unused(from);
}

// Its call waits on, and is reported again.
void Relocations::stay(ClientSession& session, const char* why) {
  using Reason = SessionRelocation::Reason;
  const Reason reason = session.relocation ? session.relocation->reason : Reason::starves;
  const bool starves = reason == Reason::starves;
  if (!starves) {
    log_info("{}: stays in executor {}, because {}.", session.name(), session.executor->label(), why);
  } else {
    log_warning("{}: stays in executor {}, because {}; its call waits on (--patience-s).", session.name(), session.executor->label(), why);
  }
  session.executor->send(message::Stay{.session = session.id});
  session.event_times_hold = false;
  drop(session);
  if (session.wants_heap) return reason == Reason::blank_heap ? give_heap(session, why) : seek_blank_heap(session);
}

void Relocations::drop(ClientSession& session) {
  const bool has_copies = session.relocation && session.relocation->has_copies;
  ManagedExecutor* to = session.relocation ? session.relocation->to : nullptr;
  session.relocation.reset();
  if (has_copies) replays_.release_copies(session, *to);
  if (to != nullptr) choice_.let_go_if_unused(*to);
}

}  // namespace mpsshim::broker::control
