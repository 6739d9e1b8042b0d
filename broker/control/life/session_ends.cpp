// SPDX-License-Identifier: Apache-2.0
#include "broker/control/life/session_ends.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "broker/control/sessions/host_segments.hpp"
#include "broker/log.hpp"
#include "broker/log_subject.hpp"

namespace mpsshim::broker::control {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSlowEnd{5'000};  // then the log tells whose end takes so long
constexpr milliseconds kStopLook{2};     // while somebody waits to hear that its work has stopped

}  // namespace

void SessionEnds::end(ClientSession& session) {
  session.answer = nullptr;
  session.deadline.reset();
  places_.relocations.drop(session);
  if (!session.in_executor()) return erase(session);
  begin(session, SessionPhase::closing);
}

void SessionEnds::end_all_but(const std::set<std::uint64_t>& claimed) {
  std::vector<std::uint64_t> others;
  for (const auto& [id, session] : places_.sessions.all()) {
    if (!claimed.contains(id)) others.push_back(id);
  }
  for (const std::uint64_t id : others) end(places_.sessions.at(id));
}

void SessionEnds::terminate(ClientSession& session, std::function<void()> stopped) {
  places_.relocations.drop(session);
  if (session.phase == SessionPhase::lost) return stopped();  // keeps the error it has
  log_info("{}: is terminated by a command.", session.name());
  session.on_stopped.push_back(std::move(stopped));
  if (!session.in_executor()) {
    lose(session, CUDA_ERROR_MPS_CLIENT_TERMINATED);
    return session.respond(CUDA_SUCCESS);
  }
  if (session.is_ending()) return check(session.id);
  fail(session, CUDA_ERROR_MPS_CLIENT_TERMINATED, "it is terminated by a command");
}

void SessionEnds::fail(ClientSession& session, CUresult error, const char* why) {
  session.lost_error = error;
  session.channel->tell_failed(error);
  log_server(session.executor->pid(), "Status of client {} is INACTIVE: {}.", session.server_name(), why);
  begin(session, SessionPhase::terminating);
  session.respond(CUDA_SUCCESS);
}

void SessionEnds::begin(ClientSession& session, SessionPhase phase) {
  const SessionPhase before = std::exchange(session.phase, phase);
  if (before == SessionPhase::closing || before == SessionPhase::terminating) return;  // under way
  // To the executor's close_session(); its answer comes to closed().
  if (before != SessionPhase::reopening) session.executor->send(message::SessionClose{.session = session.id});
  places_.image_service.drop_jobs(session.id);  // a helper that waited for an image would keep it from being taken down
  session.ended_at = EventLoop::Clock::now();
  check(session.id);
}

// A client that is gone or terminated has no claim on the GPU: work of it that runs on after the grace costs the executor.
void SessionEnds::check(std::uint64_t id) {
  ClientSession* session = places_.sessions.find(id);
  if (session == nullptr || !session->in_executor()) return;
  const LogSubject subject(session->client.uid);
  ManagedExecutor& executor = *session->executor;
  if (!executor.has_streams(id)) report_stopped(*session);
  const auto waited = std::chrono::duration_cast<milliseconds>(EventLoop::Clock::now() - session->ended_at);
  const char* why = session->phase == SessionPhase::closing ? "its client is gone" : "it is terminated";
  if (waited >= limits_.orphan && executor.is_busy(id) && executor.state() == ExecutorState::active) {
    log_warning("{}: {} and its work still runs after {} ms; executor {} is replaced.", session->name(), why, limits_.orphan.count(),
                executor.label());
    if (session->phase == SessionPhase::closing) places_.ledger.note_fault({session->client.program});  // the others pay for it as for a fault
    places_.replacements.begin(executor, true);
  } else if (waited >= kSlowEnd && !std::exchange(session->end_is_slow, true)) {
    log_warning("{}: {}, its work has ended, but executor {} has not released it for {} ms.", session->name(), why, executor.label(), waited.count());
  }
  const milliseconds pause = session->on_stopped.empty() ? std::max(limits_.orphan, milliseconds(1)) : kStopLook;
  session->end_check = loop_.after(pause, [this, id] { check(id); });
}

void SessionEnds::report_stopped(ClientSession& session) {
  for (const auto& stopped : std::exchange(session.on_stopped, {})) stopped();
}

void SessionEnds::lose(ClientSession& session, CUresult error) {
  const SessionPhase before = std::exchange(session.phase, SessionPhase::lost);
  session.lost_error = error;
  if (session.executor != nullptr && before != SessionPhase::terminating) {  // then it has been said
    log_server(session.executor->last_pid(), "Status of client {} is INACTIVE: it has the sticky CUDA error {}.", session.server_name(),
               static_cast<int>(error));
  }
  if (session.channel) session.channel->tell_failed(error);
  places_.replays.forget_variables(session);
  places_.shares.forget_session(session.id);
  session.forget_executor();
  session.chunks.clear();  // nobody can use it again: the device gets it back now, not when the client ends
  abandon_events(session);
  session.segments.clear();
  places_.relocations.drop(session);
  report_stopped(session);
  events_.lost(session.id);
  if (session.executor != nullptr) places_.choice.let_go_if_unused(*session.executor);
}

void SessionEnds::refuse(ClientSession& session, CUresult status) {
  if (!session.has_lived) {
    session.respond(status);
    return erase(session);
  }
  lose(session, status);
  session.respond(CUDA_SUCCESS);
}

void SessionEnds::closed(ClientSession& session) {
  if (session.phase == SessionPhase::closing) return erase(session);
  if (session.phase == SessionPhase::terminating) lose(session, session.lost_error);
}

void SessionEnds::erase(ClientSession& session) {
  log_info("{}: ended.", session.name());
  if (session.has_lived && session.lost_error == CUDA_SUCCESS) places_.ledger.note_good(*session.client.program);
  if (session.executor != nullptr) log_server(session.executor->last_pid(), "Client {} disconnected.", session.server_name());
  report_stopped(session);
  places_.ranges.let_go(session);
  places_.images.release_session(session.id);
  places_.image_service.drop_jobs(session.id);
  places_.image_service.forget_unheld();
  ManagedExecutor* const executor = session.executor;
  places_.replays.forget_variables(session);
  places_.shares.forget_session(session.id);
  abandon_events(session);
  const std::uint64_t id = session.id;
  places_.sessions.erase(id);
  if (executor != nullptr) places_.choice.let_go_if_unused(*executor);
  events_.erased(id);
}

}  // namespace mpsshim::broker::control
