// SPDX-License-Identifier: Apache-2.0
#include "broker/control/life/trials.hpp"

#include <algorithm>
#include <utility>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::chrono::seconds kCaseLimit{5};         // whoever has not asked by then does without
constexpr std::chrono::milliseconds kLifeLimit{600};  // for the next life of the executor that has faulted: its clients come first
constexpr unsigned kPageShift = 12;                   // of an address the kernel log often has the page alone

std::optional<std::uint64_t> page_of(std::optional<std::uint64_t> address) { return address ? std::optional(*address >> kPageShift) : std::nullopt; }

const char* outcome_text(proto::TrialOutcome outcome) {
  switch (outcome) {
    case proto::TrialOutcome::nothing: return "they have ended without a fault";
    case proto::TrialOutcome::not_run: return "they could not be run";
    case proto::TrialOutcome::unended: return "some of them still run";
  }
  return "what came of it is not known";
}

}  // namespace

bool Trials::may_be_tried(const ClientSession& session, const SessionCondition& condition, const DeathReport& report) const {
  if (session.phase != SessionPhase::active || session.trial || !condition.busy || condition.client_gone || condition.terminated) return false;
  if (session.client.layout_minor < proto::kTrialsSinceMinor) return false;
  const auto work = report.work.find(session.id);
  return work != report.work.end() && (work->second.kinds & WorkKind::kernel) != 0;
}

std::set<std::uint64_t> Trials::begin(const ManagedExecutor& executor, const DeathReport& report, std::optional<std::uint64_t> address,
                                      std::span<const SessionCondition> sessions) {
  if (limits_.trial.count() == 0 || !is_a_programs_doing(report.error) || of(executor) != cases_.end()) return {};
  std::vector<std::uint64_t> tried;
  for (const SessionCondition& condition : sessions) {
    if (may_be_tried(sessions_.at(condition.session), condition, report)) tried.push_back(condition.session);
  }
  if (tried.empty()) return {};
  ManagedExecutor* const own = choice_.for_trials(executor);
  if (own == nullptr) {
    log_info(
        "Executor {} (pid {}): who has caused its fault is not tried, because no further executor can be had (--executors, or the GPU's compute "
        "mode).",
        executor.label(), report.pid);
    return {};
  }
  const std::uint64_t number = ++last_case_;
  Case& made = cases_[number];
  made.error = report.error;
  made.address = address;
  made.executor = own;
  made.faulted = &executor;
  // Contexts are made one after the other, and that of those who lose nothing is the first.
  const bool somebody_goes_on = std::ranges::any_of(
      sessions, [](const SessionCondition& condition) { return !condition.busy && !condition.client_gone && !condition.terminated; });
  if (somebody_goes_on) {
    made.context = loop_.after(kLifeLimit, [own] { own->make_context(); });
  } else {
    own->make_context();
  }
  made.undecided = {tried.begin(), tried.end()};
  made.programs = sessions_.programs_of(find_suspects(report, sessions));
  made.limit = loop_.after(kCaseLimit, [this, number] { end(number); });
  log_info("Executor {} (pid {}): what {} clients had launched is to be run again, one after the other, in executor {}.", executor.label(),
           report.pid, tried.size(), own->label());
  return made.undecided;
}

void Trials::take(ClientSession& session) {
  const auto found = std::ranges::find_if(cases_, [&](const auto& entry) { return entry.second.undecided.contains(session.id); });
  session.trial.emplace().number = found->first;
  session.executor = found->second.executor;
  session.channel->tell_on_trial();  // its client's next call goes on in Recovery::stand_trial
}

bool Trials::awaits_turn(ClientSession& session) {
  if (!session.trial) return false;
  if (!session.trial->limit) {
    session.trial->limit =
        loop_.after(limits_.trial, [this, id = session.id] { give_up(sessions_.at(id), "its trial takes longer than --trial-ms"); });
  }
  const auto found = cases_.find(session.trial->number);
  if (found == cases_.end() || session.executor == nullptr) return true;
  Case& its = found->second;
  if (its.current != 0 && its.current != session.id) return true;
  if (its.executor->state() != ExecutorState::active) return true;  // SessionOpening::serve follows
  if (its.current == 0 && next_of(its) != session.id) return true;  // which asks in the same turn, or is opened by go_on
  its.current = session.id;
  return false;
}

void Trials::told(ClientSession& session, const proto::TrialEnded& ended) {
  if (!session.trial || session.is_ending() || session.phase == SessionPhase::lost) return;
  log_info("{}: {} launches of it were run again: {}.", session.name(), ended.launches, outcome_text(ended.outcome));
  give_up(session, "its work was lost with another client's fault, or its own");
}

void Trials::give_up(ClientSession& session, const char* why) {
  if (session.is_ending() || session.phase == SessionPhase::lost) return;
  log_warning("{}: had work in flight and gets CUDA error {}: {}.", session.name(), static_cast<int>(CUDA_ERROR_MPS_SERVER_NOT_READY), why);
  if (session.in_executor()) return ends_.fail(session, CUDA_ERROR_MPS_SERVER_NOT_READY, why);
  ends_.lose(session, CUDA_ERROR_MPS_SERVER_NOT_READY);
  session.respond(CUDA_SUCCESS);
}

bool Trials::confirms(const ManagedExecutor& executor, CUresult error, std::optional<std::uint64_t> address) const {
  const auto found = of(executor);
  if (found == cases_.end()) return true;
  const Case& its = found->second;
  if (its.error == error && page_of(its.address) == page_of(address)) return true;
  log_info("Executor {}: CUDA error {} at {} is another fault than the one that the trial is about, CUDA error {} at {}.", executor.label(),
           static_cast<int>(error), address ? fmt::format("address {:#x}", *address) : "an unknown address", static_cast<int>(its.error),
           its.address ? fmt::format("address {:#x}", *its.address) : "an unknown address");
  return false;
}

void Trials::settled(ManagedExecutor& executor, bool is_solved) {
  const auto found = of(executor);
  if (found == cases_.end() || !is_solved) return;
  found->second.programs.clear();  // it was none of theirs
  executor.end_with_life();
  end(found->first);
}

void Trials::executor_ready(const ManagedExecutor& executor) {
  for (auto& [number, its] : cases_) {
    if (its.faulted != &executor) continue;
    its.context.reset();
    its.executor->make_context();
  }
}

// Its executor has nothing of it any more: the next one's turn, in a moment.
void Trials::ended(std::uint64_t session) {
  for (auto& [number, its] : cases_) {
    if (its.undecided.erase(session) == 0) continue;
    if (its.current == session) its.current = 0;
    its.step = loop_.after(std::chrono::milliseconds(0), [this, which = number] { go_on(which); });
    return;
  }
}

void Trials::go_on(std::uint64_t number) {
  const Case& its = cases_.at(number);
  if (its.undecided.empty()) return end(number);
  if (its.current != 0) return;
  if (const std::uint64_t next = next_of(its); next != 0) open_(sessions_.at(next));
}

std::uint64_t Trials::next_of(const Case& its) const {
  std::uint64_t next = 0;
  std::uint64_t least = 0;
  for (const std::uint64_t id : its.undecided) {
    const ClientSession& session = sessions_.at(id);
    if (session.phase != SessionPhase::waiting || !session.answer) continue;
    const auto counts = session.counts.read();
    const std::uint64_t launches = counts ? counts->launches : 0;
    if (next != 0 && launches >= least) continue;
    next = id;
    least = launches;
  }
  return next;
}

void Trials::end(std::uint64_t number) {
  Case its = std::move(cases_.at(number));
  cases_.erase(number);
  for (const std::uint64_t id : its.undecided) give_up(sessions_.at(id), "its work was lost with another client's fault, or its own");
  if (!its.programs.empty()) ledger_.note_fault(std::move(its.programs));
}

void Trials::end_all() {
  while (!cases_.empty()) end(cases_.begin()->first);
}

Trials::Cases::iterator Trials::of(const ManagedExecutor& executor) {
  return std::ranges::find_if(cases_, [&](const auto& entry) { return entry.second.executor == &executor; });
}

Trials::Cases::const_iterator Trials::of(const ManagedExecutor& executor) const {
  return std::ranges::find_if(cases_, [&](const auto& entry) { return entry.second.executor == &executor; });
}

}  // namespace mpsshim::broker::control
