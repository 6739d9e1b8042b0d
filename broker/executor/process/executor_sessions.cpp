// SPDX-License-Identifier: Apache-2.0
// Sessions as the control process has them come, pause, change and go.
#include "broker/executor/process/executor.hpp"

#include <chrono>

#include "broker/executor/memory/application_memory.hpp"
#include "broker/executor/process/stress_thread.hpp"
#include "broker/executor/sessions/session.hpp"
#include "broker/log.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

namespace {

using Clock = std::chrono::steady_clock;

long long elapsed_us(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration_cast<std::chrono::microseconds>(to - from).count();
}

}  // namespace

void Executor::open_session(Received<message::SessionOpen> received) {
  CUresult result = CUDA_SUCCESS;
  const message::SessionOpen open = received.message;
  const ScopedMark mark(open.session, "opening a session");
  const proto::trace::Span span("session", "opening a session", {"session", open.session});
  proto::trace::fact("session", {{"session", open.session}, {"client_pid", open.client_pid}, {"client_uid", open.client_uid}});
  auto pieces = restores_.extract(open.session);
  const Clock::time_point began = Clock::now();
  std::shared_ptr<Session> session = Session::open(*parts_, std::move(received), result);
  const Clock::time_point opened = Clock::now();
  if (session && !pieces.empty()) {
    result = restore(*session, pieces.mapped());
    log_info("Session {}: opened in {} us, {} pieces of its memory brought back in {} us", open.session, elapsed_us(began, opened),
             pieces.mapped().size(), elapsed_us(opened, Clock::now()));
  }
  if (!stress_) stress_ = std::make_unique<StressThread>(*parts_);
  if (session && result == CUDA_SUCCESS) workers_->add(session);
  if (session && result != CUDA_SUCCESS) Session::discard(session);
  if (result != CUDA_SUCCESS) log_error("Session {} (pid {}) could not be opened: {}", open.session, open.client_pid, driver_->describe(result));
  link_.send(message::SessionOpened{.session = open.session, .status = static_cast<std::uint32_t>(result)});
}

CUresult Executor::restore(Session& session, Restores& pieces) {
  for (ReceivedMessage& piece : pieces) {
    const ScopedMark mark(session.id(), "restoring memory", Patience::patient);
    const CUresult result = restore_piece(session, piece);
    if (result != CUDA_SUCCESS) return faults_->check(result, session.id(), "restoring a session's memory");
  }
  return CUDA_SUCCESS;
}

CUresult Executor::restore_piece(Session& session, ReceivedMessage& piece) {
  if (piece.is<message::LeaseRestore>()) {
    const auto restored = piece.read<message::LeaseRestore>();
    return session.memory().add_lease(restored.lease, restored.is_peers != 0);
  }
  if (piece.is<message::ChunkRestore>()) {
    const auto [chunk, fds] = piece.take<message::ChunkRestore>();
    return ApplicationMemory::is_piece(chunk.chunk) ? session.memory().application().adopt(proto::MemoryId{chunk.chunk}, chunk.size_bytes, fds.handle)
                                                    : session.memory().restore_chunk(chunk.chunk, chunk.size_bytes, fds.handle.get());
  }
  if (piece.is<message::VariablesRestore>()) {
    return session.variables().adopt(piece.take<message::VariablesRestore>().fds.variables) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (piece.is<message::EventTimesRestore>()) {
    if (session.times().adopt(piece.take<message::EventTimesRestore>().fds.times)) session.times().set_base(parts_->host_clock.base());
    return CUDA_SUCCESS;
  }
  const auto [segment, fds] = piece.take<message::SegmentRestore>();
  std::uint64_t device_address = 0;
  const CUresult result =
      session.memory().segments().map(segment.segment, {segment.purpose, segment.address, segment.is_peers != 0}, 0, fds.file, device_address);
  // The client goes by one address for host and device.
  const bool is_moved = proto::has_own_address(segment.purpose) && device_address != segment.address;
  return result == CUDA_SUCCESS && is_moved ? CUDA_ERROR_MPS_SERVER_NOT_READY : result;
}

void Executor::close_session(std::uint64_t session) {
  restores_.erase(session);
  link_.forget_session(session);
  window_->cancel(session);  // what it still waits for would keep it from being taken down
  workers_->close(session, [this, session] { tell_end(message::SessionClosed{.session = session}); });
}

void Executor::pause_session(const message::SessionPause& pause) {
  const auto answer = [this, pause](CUresult result) {
    tell_end(
        message::SessionPaused{.session = pause.session, .order = pause.order, .flags = pause.flags, .status = static_cast<std::uint32_t>(result)});
  };
  if ((pause.flags & kPauseToRest) != 0) return workers_->rest(pause.session, pause.flags, answer);
  workers_->pause(pause.session, (pause.flags & kPauseWithoutVariables) != 0, answer);
}

void Executor::provision_session(const message::SessionProvision& wanted) {
  workers_->provision(wanted, [this, wanted](CUresult result, std::uint32_t percentage) {
    link_.send(message::SessionProvisioned{
        .session = wanted.session, .order = wanted.order, .status = static_cast<std::uint32_t>(result), .thread_percentage = percentage});
  });
}

}  // namespace mpsshim::broker
