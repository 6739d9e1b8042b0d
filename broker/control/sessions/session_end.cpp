// SPDX-License-Identifier: Apache-2.0
// Ends of sessions: their client has gone, or a command has terminated them.
#include <algorithm>

#include "broker/control/sessions/session_manager.hpp"
#include "broker/log.hpp"
#include "broker/log_subject.hpp"

namespace mpsshim::broker::control {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSlowEnd{5'000};  // then the log tells whose end takes so long
constexpr milliseconds kStopLook{2};     // while somebody waits to hear that its work has stopped

}  // namespace

void SessionManager::end(ClientSession& session) {
  session.answer = nullptr;
  session.deadline.reset();
  drop_relocation(session);
  if (!session.in_executor()) return erase(session);
  begin_end(session, SessionPhase::closing);
}

void SessionManager::end_all_but(const std::set<std::uint64_t>& claimed) {
  std::vector<std::uint64_t> others;
  for (const auto& [id, session] : sessions_) {
    if (!claimed.contains(id)) others.push_back(id);
  }
  for (const std::uint64_t id : others) end(sessions_.at(id));
}

void SessionManager::terminate(ClientSession& session, std::function<void()> stopped) {
  drop_relocation(session);
  if (session.phase == SessionPhase::lost) return stopped();  // keeps the error it has
  log_info("{}: is terminated by a command.", session.name());
  session.on_stopped.push_back(std::move(stopped));
  if (!session.in_executor()) {
    lose(session, CUDA_ERROR_MPS_CLIENT_TERMINATED);
    return respond(session, CUDA_SUCCESS);
  }
  if (session.phase == SessionPhase::closing || session.phase == SessionPhase::terminating) return check_end(session.id);
  fail(session, CUDA_ERROR_MPS_CLIENT_TERMINATED, "it is terminated by a command");
}

// It is in an executor, where its work ends; the client is still there.
void SessionManager::fail(ClientSession& session, CUresult error, const char* why) {
  session.lost_error = error;
  session.channel->tell_failed(error);
  log_server(session.executor->pid(), "Status of client {} is INACTIVE: {}.", session.server_name(), why);
  begin_end(session, SessionPhase::terminating);
  respond(session, CUDA_SUCCESS);
}

void SessionManager::begin_end(ClientSession& session, SessionPhase phase) {
  const SessionPhase before = std::exchange(session.phase, phase);
  if (before == SessionPhase::closing || before == SessionPhase::terminating) return;  // under way
  if (before != SessionPhase::reopening) send_close(session);  // to the executor's close_session(); its answer comes to session_closed()
  drop_jobs(session.id);  // a helper that waited for an image would keep it from being taken down
  session.ended_at = EventLoop::Clock::now();
  check_end(session.id);
}

// A client that is gone or terminated has no claim on the GPU: work of it that runs on after the grace costs the executor.
void SessionManager::check_end(std::uint64_t id) {
  ClientSession* session = find(id);
  if (session == nullptr || !session->in_executor()) return;
  const LogSubject subject(session->client.uid);
  ManagedExecutor& executor = *session->executor;
  if (!executor.has_streams(id)) report_stopped(*session);
  const auto waited = std::chrono::duration_cast<milliseconds>(EventLoop::Clock::now() - session->ended_at);
  const char* why = session->phase == SessionPhase::closing ? "its client is gone" : "it is terminated";
  if (waited >= limits_.orphan && executor.is_busy(id) && executor.state() == ExecutorState::active) {
    log_warning("{}: {} and its work still runs after {} ms; executor {} is replaced.", session->name(), why, limits_.orphan.count(),
                executor.label());
    if (session->phase == SessionPhase::closing) note_fault({id});  // the others pay for it as for a fault
    begin_replacement(executor, true);
  } else if (waited >= kSlowEnd && !std::exchange(session->end_is_slow, true)) {
    log_warning("{}: {}, its work has ended, but executor {} has not released it for {} ms.", session->name(), why, executor.label(), waited.count());
  }
  const milliseconds pause = session->on_stopped.empty() ? std::max(limits_.orphan, milliseconds(1)) : kStopLook;
  session->end_check = loop_.after(pause, [this, id] { check_end(id); });
}

void SessionManager::report_stopped(ClientSession& session) {
  for (const auto& stopped : std::exchange(session.on_stopped, {})) stopped();
}

void SessionManager::session_closed(ClientSession& session) {
  leave_heap(session);
  if (session.phase == SessionPhase::closing) return erase(session);
  if (session.phase == SessionPhase::terminating) return lose(session, session.lost_error);
  if (session.phase != SessionPhase::reopening) return;
  session.channel->write_header(session.id, session.epoch, session.client.layout_minor);
  send_open(session, *session.executor);
}

void SessionManager::erase(ClientSession& session) {
  log_info("{}: ended.", session.name());
  if (session.has_lived && session.lost_error == CUDA_SUCCESS && session.client.program->is_known)
    quarantine_.note_good(session.client.program->program);
  if (session.executor != nullptr) log_server(session.executor->last_pid(), "Client {} disconnected.", session.server_name());
  report_stopped(session);
  const Remnants::Leases leases{session.device_lease, session.pinned_lease};
  if (!remnants_.keep(session.id, leases)) free_leases({leases});
  for (const proto::Lease& lease : session.more_leases) {
    const Remnants::Leases further{lease, {}};
    if (!remnants_.keep(session.id, further)) free_leases({further});
  }
  images_.release_session(session.id);
  drop_jobs(session.id);
  forget_images();
  ManagedExecutor* const executor = session.executor;
  forget_variables(session);
  shares_.forget_session(session.id);
  abandon_events(session);
  sessions_.erase(session.id);
  if (executor != nullptr) release(*executor);
  look_at_heaps_soon();
}

}  // namespace mpsshim::broker::control
