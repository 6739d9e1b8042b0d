// SPDX-License-Identifier: Apache-2.0
#include "broker/control/life/executor_deaths.hpp"

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "broker/control/sessions/session_output.hpp"
#include "broker/log.hpp"
#include "broker/log_subject.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr unsigned kCompilingCrashes = 2;  // then it is the image
constexpr unsigned kOpeningDeaths = 2;     // then the session is taken to be what kills executors
}  // namespace

// The driver's compiler was seen to crash over an image that it compiled at any other time. The session's call is made again in the next executor.
DeathReport ExecutorDeaths::excused(DeathReport report) {
  ClientSession* const session = report.was_compiling ? sessions_.find(report.named_session) : nullptr;
  if (session == nullptr || ++session->crashes_while_compiling >= kCompilingCrashes) return report;
  log_warning("{}: the driver crashed while it compiled an image of it; the next executor tries again, once.", session->name());
  report.named_session = 0;
  return report;
}

// Where nobody is, those who may be tried are marked.
Guilt ExecutorDeaths::find_guilty_of(ManagedExecutor& executor, const DeathReport& report, std::vector<SessionCondition>& conditions) {
  if (report.cause != DeathReport::Cause::fault) return {};
  const std::optional<std::uint64_t> address = investigation_.address_of(report.pid);
  if (!trials_.confirms(executor, report.error, address)) return {};
  const Guilt guilt = investigation_.investigate(executor, report, conditions);
  if (guilt.proof != Proof::none || !is_a_programs_doing(report.error)) return guilt;
  const std::set<std::uint64_t> tried = trials_.begin(executor, report, address, conditions);
  for (SessionCondition& condition : conditions) condition.is_tried = tried.contains(condition.session);
  if (tried.empty()) ledger_.note_fault(sessions_.programs_of(find_suspects(report, conditions)));
  return guilt;
}

bool ExecutorDeaths::settle(ManagedExecutor& executor, const DeathReport& reported, const std::set<std::uint64_t>& busy) {
  const DeathReport report = excused(reported);
  std::vector<SessionCondition> conditions;
  for (auto& [id, session] : sessions_.all()) {
    if (session.executor != &executor || !session.in_executor()) continue;
    relocations_.drop(session);  // it comes to an executor without the kernel it starved of
    conditions.push_back(Investigation::condition_of(session, busy.contains(id)));
  }
  if (report.cause == DeathReport::Cause::fault) {
    log_server(report.pid, "Server is handling a fatal GPU error on device {}: {}. Server status is FAULT.", executor.device(), report.text);
  }
  const Guilt guilt = find_guilty_of(executor, report, conditions);
  if (report.cause == DeathReport::Cause::crash && report.named_session != 0) {
    ledger_.note_fault(sessions_.programs_of(std::array{report.named_session}));
  }
  if (ClientSession* const guilty = guilt.proof != Proof::none ? sessions_.find(guilt.session) : nullptr) {
    add_output(*guilty, OutputBox::kStandardError, report.assertions);
  }
  for (const Verdict& verdict : judge(report, conditions, guilt)) apply(verdict, report);
  trials_.settled(executor, guilt.proof != Proof::none);
  log_server(report.pid, "Destroyed server context on device {}.", executor.device());
  // Or one of several, it is not known which: that does not stand against the driver either.
  const bool is_a_clients =
      report.cause == DeathReport::Cause::fault && is_a_programs_doing(report.error) && !find_suspects(report, conditions).empty();
  return guilt.proof != Proof::none || report.named_session != 0 || is_a_clients;
}

void ExecutorDeaths::apply(const Verdict& verdict, const DeathReport& report) {
  ClientSession& session = sessions_.at(verdict.session);
  const LogSubject subject(session.client.uid);
  switch (verdict.fate) {
    case Fate::dropped: return ends_.erase(session);
    case Fate::moved:
      log_info("{}: was idle and moves to the next executor.", session.name());
      log_server(report.pid, "Client {} was idle and is unhurt.", session.server_name());
      if (session.channel) session.channel->tell_moved();  // its client's next call goes on in SessionClient::recover
      return move(session);
    case Fate::tried:
      log_info("{}: had work in flight; what it had launched is to be run again by itself.", session.name());
      move(session);
      return trials_.take(session);
    case Fate::failed:
      if (session.phase != SessionPhase::terminating) {
        log_warning("{}: had work in flight and gets CUDA error {}{}{}.", session.name(), static_cast<int>(verdict.error),
                    report.text.empty() ? "" : "; ", report.text);
      }
      ends_.lose(session, session.phase == SessionPhase::terminating ? session.lost_error : verdict.error);
      if (session.answer) session.respond(CUDA_SUCCESS);
      return;
  }
}

void ExecutorDeaths::move(ClientSession& session) {
  if (session.phase == SessionPhase::opening && ++session.deaths_while_opening >= kOpeningDeaths) {
    log_error("{}: {} executors died while it was being opened; it is given up, so that others are served.", session.name(), kOpeningDeaths);
    return ends_.refuse(session, CUDA_ERROR_MPS_SERVER_NOT_READY);
  }
  session.forget_executor();
  if (session.phase == SessionPhase::opening && session.answer && !session.changing_lease) {
    session.phase = SessionPhase::waiting;  // its Attach is still unanswered; the next executor answers it
    return;
  }
  session.phase = SessionPhase::moved;
  session.delivered = false;
  if (session.changing_lease) session.respond(CUDA_ERROR_MPS_SERVER_NOT_READY);
}

}  // namespace mpsshim::broker::control
