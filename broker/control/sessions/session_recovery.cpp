// SPDX-License-Identifier: Apache-2.0
// SessionManager's other half: executors' deaths, and what the next one is given.
#include <algorithm>

#include <unistd.h>

#include "broker/control/sessions/session_manager.hpp"
#include "broker/kept_variables.hpp"
#include "broker/log.hpp"
#include "broker/log_subject.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr std::chrono::milliseconds kDrainLook{2};
constexpr unsigned kCompilingCrashes = 2;  // then it is the image
constexpr unsigned kOpeningDeaths = 2;  // then the session is taken to be what kills executors
}  // namespace

void SessionManager::executor_ready(ManagedExecutor& executor) {
  const bool first = !facts_file_.valid();
  if (executor.id() == ExecutorId{}) publish_facts(executor);
  if (!leases_) make_leases(*executor.facts());
  if (executor.serving()->loads_given == 0) shorten_log(executor);
  replay_loads(executor, *executor.serving());
  if (rest_ && executor.user() == rest_->house.value_or(executor.user())) {
    executor.hold();
  } else {
    serve_waiting(executor);
  }
  log_server(executor.pid(), "Server status is ACTIVE: device {}, {}.", executor.device(), executor.driver());
  release(executor);
  if (first && facts_file_.valid()) events_.facts_published();
  look_for_renewal();
}

void SessionManager::look_for_renewal() {
  const auto is_done = [this](const auto& entry) {
    const ManagedExecutor& executor = *entry.second;
    return executor.state() == ExecutorState::active || executor.is_quitting() || executor.user() != renewed_house_.value_or(executor.user());
  };
  if (on_renewed_ && std::ranges::all_of(pool_.all(), is_done)) std::exchange(on_renewed_, nullptr)();
}

void SessionManager::serve_waiting(ManagedExecutor& executor) {
  std::vector<std::uint64_t> waiting;  // opening may end a session
  for (const auto& [id, session] : sessions_) {
    if (session.executor == &executor && session.phase == SessionPhase::waiting && session.answer) waiting.push_back(id);
  }
  for (const std::uint64_t id : waiting) open_in_executor(sessions_.at(id));
  for (auto& [id, session] : sessions_) {
    if (session.relocation && session.relocation->to == &executor && !session.relocation->asked) ask_for_pause(session);
  }
}

void SessionManager::make_leases(const proto::DriverFacts& facts) {
  std::uint64_t largest = 0;
  for (std::uint32_t i = 0; i < facts.device_count; ++i) largest = std::max(largest, facts.device[i].total_memory_bytes);
  leases_ = std::make_unique<LeaseTable>(limits_.window, largest);
}

// Written, not mapped, so that the content can be sealed: clients get a file nobody can change.
void SessionManager::publish_facts(const ManagedExecutor& executor) {
  proto::FileDescriptor file = proto::create_memory_file("mpsshim-facts", sizeof(proto::DriverFacts));
  const bool written =
      file.valid() && pwrite(file.get(), executor.facts(), sizeof(proto::DriverFacts), 0) == static_cast<ssize_t>(sizeof(proto::DriverFacts));
  if (!written || !proto::seal(file, proto::Seal::content)) {
    log_error("The driver's facts could not be published; clients will not find a driver. Free memory or raise the limit of open files.");
    return;
  }
  facts_file_ = std::move(file);
}

// Nobody may attach before what is in the log has been made again.
void SessionManager::shorten_log(const ManagedExecutor& executor) {
  const CopyOwners owners = copy_owners(executor);
  // After a restart of the broker sessions are placed only when they come.
  const auto comes_here = [&](const ClientSession& session) {
    const bool is_to_come = session.executor == nullptr && house_of(session.client) == executor.user();
    return (session.executor == &executor || is_to_come) && session.phase != SessionPhase::lost && session.phase != SessionPhase::terminating &&
           session.phase != SessionPhase::closing;
  };
  const auto is_held = [&](std::uint64_t image) {
    return std::ranges::any_of(sessions_, [&](const auto& entry) { return comes_here(entry.second) && images_.is_held(image, entry.first); });
  };
  const std::size_t before = images_.log().size();
  const std::size_t gone = images_.shorten(executor.id(), {[&](const ImageStore::Entry& entry) {
                                                             return owners.contains({entry.object, entry.copy});
                                                           },
                                                           is_held});
  if (gone == 0) return;
  log_info("Executor {}: {} of {} loads, streams, graphs and side contexts of the life before are made again when they are wanted.", executor.label(),
           gone, before);
}

// What it has not been told yet.
void SessionManager::replay_loads(const ManagedExecutor& executor, ExecutorInstance& instance) {
  const CopyOwners owners = copy_owners(executor);
  std::size_t number = 0;
  for (const ImageStore::Entry& entry : images_.log()) {
    if (entry.executor != executor.id() || ++number <= instance.loads_given) continue;
    instance.loads_given = number;
    message::LoadReplay replay{.object = entry.object, .copy = entry.copy, .kind = entry.kind};
    if (entry.kind != LogKind::load) {
      instance.send(replay);
      continue;
    }
    if (const auto owner = owners.find({entry.object, entry.copy}); owner != owners.end()) replay.session = owner->second;
    std::uint64_t size_bytes = 0;
    int fd = images_.compiled_file(executor.id().device, entry.object);
    if (fd < 0) fd = images_.sealed_file(0, entry.object, size_bytes);
    instance.send({replay, {.image = fd}});
  }
}

void SessionManager::standby_waits(ManagedExecutor& executor) { feed_standby(executor); }

void SessionManager::feed_standby(ManagedExecutor& executor) {
  if (ExecutorInstance* standby = executor.standby()) replay_loads(executor, *standby);
}

// Which session of this executor has which copy of an image, with variables that it is to have again.
SessionManager::CopyOwners SessionManager::copy_owners(const ManagedExecutor& executor) const {
  CopyOwners owners;
  for (const auto& [id, session] : sessions_) {
    const bool is_coming = session.relocation && session.relocation->to == &executor;
    if (session.executor == &executor || is_coming) add_copies_of(session, owners);
  }
  return owners;
}

void SessionManager::add_copies_of(const ClientSession& session, CopyOwners& owners) {
  if (!session.variables.valid()) return;
  const auto file = proto::Mapping::map(session.variables, 0, sizeof(KeptVariablesFile), proto::Access::read_only);
  if (!file) return;
  for (const KeptVariable& variable : table_of(*reinterpret_cast<const KeptVariablesFile*>(file.data())))
    owners.emplace(std::pair(variable.image, variable.copy), session.id);
}

// It does not come back for them.
void SessionManager::forget_variables(ClientSession& session) {
  if (session.executor != nullptr) release_copies(session, *session.executor);
  session.variables.reset();
}

void SessionManager::release_copies(const ClientSession& session, ManagedExecutor& executor) {
  if (!session.variables.valid() || executor.state() != ExecutorState::active) return;
  const message::VariablesForget forget{.session = session.id};
  executor.send(forget);
  if (ExecutorInstance* standby = executor.standby()) standby->send(forget);
}

// The driver's compiler was seen to crash over an image that it compiled at any other time. The session's call is made again in the next executor.
DeathReport SessionManager::excused(DeathReport report) {
  ClientSession* const session = report.was_compiling ? find(report.named_session) : nullptr;
  if (session == nullptr || ++session->crashes_while_compiling >= kCompilingCrashes) return report;
  log_warning("{}: the driver crashed while it compiled an image of it; the next executor tries again, once.", session->name());
  report.named_session = 0;
  return report;
}

bool SessionManager::executor_died(ManagedExecutor& executor, const DeathReport& reported, const std::set<std::uint64_t>& busy) {
  const DeathReport report = excused(reported);
  const auto drain = drains_.extract(executor.id());
  const bool is_replaced_for_one = !drain.empty() && drain.mapped().is_a_clients && report.cause == DeathReport::Cause::replaced;
  heaps_[executor.user()].left.erase(executor.id());
  standby_feeds_.erase(executor.id());
  free_leases(remnants_.remove_all(executor));
  std::vector<SessionCondition> conditions;
  for (auto& [id, session] : sessions_) {
    if (session.executor != &executor || !session.in_executor()) continue;
    drop_relocation(session);  // it comes to an executor without the kernel it starved of
    conditions.push_back(condition_of(session, busy.contains(id)));
  }
  if (report.cause == DeathReport::Cause::fault) {
    log_server(report.pid, "Server is handling a fatal GPU error on device {}: {}. Server status is FAULT.", executor.device(), report.text);
  }
  const Guilt guilt = report.cause == DeathReport::Cause::fault ? investigate(executor, report, conditions) : Guilt{};
  if (report.cause == DeathReport::Cause::crash && report.named_session != 0) note_fault({report.named_session});
  if (ClientSession* const guilty = guilt.proof != Proof::none ? find(guilt.session) : nullptr) {
    add_output(*guilty, OutputBox::kStandardError, report.assertions);
  }
  for (const Verdict& verdict : judge(report, conditions, guilt)) apply(verdict, report);
  log_server(report.pid, "Destroyed server context on device {}.", executor.device());
  // Or one of several, it is not known which: that does not stand against the driver either.
  const bool is_a_clients =
      report.cause == DeathReport::Cause::fault && is_a_programs_doing(report.error) && !find_suspects(report, conditions).empty();
  return guilt.proof != Proof::none || report.named_session != 0 || is_a_clients || is_replaced_for_one;
}

void SessionManager::apply(const Verdict& verdict, const DeathReport& report) {
  ClientSession& session = sessions_.at(verdict.session);
  const LogSubject subject(session.client.uid);
  switch (verdict.fate) {
    case Fate::dropped: return erase(session);
    case Fate::moved:
      log_info("{}: was idle and moves to the next executor.", session.name());
      log_server(report.pid, "Client {} was idle and is unhurt.", session.server_name());
      return move(session);
    case Fate::failed:
      if (session.phase != SessionPhase::terminating) {
        log_warning("{}: had work in flight and gets CUDA error {}{}{}.", session.name(), static_cast<int>(verdict.error),
                    report.text.empty() ? "" : "; ", report.text);
      }
      lose(session, session.phase == SessionPhase::terminating ? session.lost_error : verdict.error);
      if (session.answer) respond(session, CUDA_SUCCESS);
      return;
  }
}

void SessionManager::move(ClientSession& session) {
  if (session.phase == SessionPhase::opening && ++session.deaths_while_opening >= kOpeningDeaths) {
    log_error("{}: {} executors died while it was being opened; it is given up, so that others are served.", session.name(), kOpeningDeaths);
    return refuse(session, CUDA_ERROR_MPS_SERVER_NOT_READY);
  }
  session.forget_executor();
  if (session.channel) session.channel->tell_moved();  // its client's next call goes on in SessionClient::recover
  if (session.phase == SessionPhase::opening && session.answer && !session.changing_lease) {
    session.phase = SessionPhase::waiting;  // its Attach is still unanswered; the next executor answers it
    return;
  }
  session.phase = SessionPhase::moved;
  session.delivered = false;
  if (session.changing_lease) respond(session, CUDA_ERROR_MPS_SERVER_NOT_READY);
}

void SessionManager::lose(ClientSession& session, CUresult error) {
  const SessionPhase before = std::exchange(session.phase, SessionPhase::lost);
  session.lost_error = error;
  if (session.executor != nullptr && before != SessionPhase::terminating) {  // then it has been said
    log_server(session.executor->last_pid(), "Status of client {} is INACTIVE: it has the sticky CUDA error {}.", session.server_name(),
               static_cast<int>(error));
  }
  if (session.channel) session.channel->tell_failed(error);
  forget_variables(session);
  shares_.forget_session(session.id);
  session.forget_executor();
  session.chunks.clear();  // nobody can use it again: the device gets it back now, not when the client ends
  abandon_events(session);
  session.segments.clear();
  drop_relocation(session);
  report_stopped(session);
  if (session.executor != nullptr) release(*session.executor);
}

void SessionManager::executor_hangs(ManagedExecutor& executor, const PublishedCall& call) {
  const ClientSession* session = find(call.session);
  log_error("Executor {} (pid {}) hangs in {} for {}: it is replaced; --hang-ms is the limit.", executor.label(), executor.pid(), call.name.text(),
            session != nullptr  ? session->name()
            : call.session == 0 ? "no session"
                                : "a session that has ended");
  begin_replacement(executor, false);
}

void SessionManager::begin_replacement(ManagedExecutor& executor, bool is_a_clients) {
  executor.begin_drain();
  Drain& drain = drains_[executor.id()];
  drain.is_a_clients = is_a_clients;
  drain.until = EventLoop::Clock::now() + limits_.drain;
  check_drain(executor);
}

void SessionManager::quiesced(ManagedExecutor& executor) {
  const auto found = drains_.find(executor.id());
  if (found == drains_.end()) return;
  found->second.quiesced = true;
  check_drain(executor);
}

// Innocent sessions' work in flight is waited for; each such session that ends it in time moves instead of failing.
void SessionManager::check_drain(ManagedExecutor& executor) {
  const auto found = drains_.find(executor.id());
  if (found == drains_.end() || executor.state() != ExecutorState::draining) return;
  const std::set<std::uint64_t> busy = executor.busy();
  const bool others_run = std::ranges::any_of(busy, [&](std::uint64_t id) {
    const ClientSession* session = find(id);
    return session != nullptr && session->executor == &executor && session->phase != SessionPhase::closing &&
           session->phase != SessionPhase::terminating && id != executor.blamed();
  });
  const bool drained = found->second.quiesced && !others_run;
  if (drained || EventLoop::Clock::now() >= found->second.until) return executor.replace();
  found->second.timer = loop_.after(kDrainLook, [this, &executor] { check_drain(executor); });
}

}  // namespace mpsshim::broker::control
