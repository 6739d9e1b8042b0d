// SPDX-License-Identifier: Apache-2.0
// Opening and ending of sessions. What an executor says, and its death, are in session_recovery.cpp.
#include "broker/control/session_manager.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::chrono::seconds kSlowEnd{5};  // then the log tells whose end takes so long

double milliseconds_since(EventLoop::Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(EventLoop::Clock::now() - start).count();
}

bool same_range(const proto::Lease& a, const proto::Lease& b) { return a.address == b.address && a.size_bytes == b.size_bytes; }

}  // namespace

SessionManager::SessionManager(EventLoop& loop, ExecutorLauncher& launcher, const ExecutorSettings& executors, const SessionLimits& limits,
                               Events events)
    : loop_(loop), launcher_(launcher), executor_settings_(executors), limits_(limits), events_(std::move(events)), images_(loop) {}

void SessionManager::start() {
  auto& first = executors_[0];
  first = std::make_unique<Executor>(loop_, launcher_, executor_settings_, 0, *this);
  first->start();
}

void SessionManager::quit(CUresult error) {
  for (auto& [id, session] : sessions_) {
    if (session.channel) session.channel->tell_failed(error);
    if (session.answer) respond(session, error);
  }
  drains_.clear();
  for (auto& [device, executor] : executors_) executor->quit();
}

const proto::DriverFacts* SessionManager::facts() const {
  const auto first = executors_.find(0);
  return first == executors_.end() ? nullptr : first->second->facts();
}

Session* SessionManager::find(std::uint64_t session) {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

// Executors of further devices are started when the first client asks for them; the first one's driver serves there too.
Executor& SessionManager::executor_of(const Session& session) {
  auto& executor = executors_[session.device];
  if (!executor) {
    ExecutorSettings settings = executor_settings_;
    settings.drivers = {executors_.at(0)->driver()};
    executor = std::make_unique<Executor>(loop_, launcher_, settings, session.device, *this);
    executor->start();
  }
  return *executor;
}

CUresult SessionManager::create(const ClientIdentity& client, unsigned device, Session*& session) {
  if (facts() == nullptr) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  if (device >= facts()->device_count) return CUDA_ERROR_INVALID_DEVICE;
  if (sessions_.size() >= limits_.max_clients) {
    log_warning("pid {} ({}) is refused: there are {} sessions already, which is the limit.", client.pid, client.command, sessions_.size());
    return CUDA_ERROR_MPS_MAX_CLIENTS_REACHED;
  }
  const std::uint64_t id = next_session_++;
  session = &sessions_[id];
  session->id = id;
  session->client = client;
  session->device = device;
  return CUDA_SUCCESS;
}

void SessionManager::attach(Session& session, Session::Answer answer) {
  session.answer = std::move(answer);
  session.asked_at = EventLoop::Clock::now();
  switch (session.phase) {
    case SessionPhase::waiting:
    case SessionPhase::moved: return await_executor(session);
    case SessionPhase::opening: break;  // an earlier request ran out of time; this one gets the channel
    case SessionPhase::active:
      if (!session.delivered) return respond(session, CUDA_SUCCESS);
      // The client has a channel that works, unless its executor ended the session for what the client did.
      if (const std::uint32_t error = session.channel->failure(); error != 0) {
        session.lost_error = static_cast<CUresult>(error);
        return respond(session, CUDA_SUCCESS);
      }
      return respond(session, CUDA_ERROR_MPS_RPC_FAILURE);
    case SessionPhase::lost: return respond(session, CUDA_SUCCESS);
    case SessionPhase::reopening:
    case SessionPhase::closing: return respond(session, CUDA_ERROR_MPS_RPC_FAILURE);
  }
  session.deadline = loop_.after(limits_.answer, [this, id = session.id] { request_timed_out(sessions_.at(id)); });
}

void SessionManager::await_executor(Session& session) {
  Executor& executor = executor_of(session);
  if (executor.state() == ExecutorState::fault) return respond(session, CUDA_ERROR_MPS_SERVER_NOT_READY);
  session.phase = SessionPhase::waiting;
  session.deadline = loop_.after(limits_.answer, [this, id = session.id] { request_timed_out(sessions_.at(id)); });
  if (executor.state() == ExecutorState::active) open_in_executor(session);
}

void SessionManager::open_in_executor(Session& session) {
  Executor& executor = executor_of(session);
  if (!ensure_leases(session)) {
    log_error("{}: no range of addresses is free that it has not refused; widen --window.", session.name());
    return refuse(session, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
  }
  session.channel = ChannelMemory::make(session.id, executor.epoch());
  if (!session.channel) {
    log_error("{}: its channel could not be made ({}); raise the broker's limit of open files or its memory limit.", session.name(), std::strerror(errno));
    return refuse(session, CUDA_ERROR_OUT_OF_MEMORY);
  }
  session.delivered = false;
  restore_memory(session, executor);
  send_open(session, executor);
}

bool SessionManager::ensure_leases(Session& session) {
  if (session.device_lease.size_bytes == 0) session.device_lease = leases_->take_device(session.refused).value_or(proto::Lease{});
  if (session.pinned_lease.size_bytes == 0) session.pinned_lease = leases_->take_pinned(session.refused).value_or(proto::Lease{});
  return session.device_lease.size_bytes != 0 && session.pinned_lease.size_bytes != 0;
}

// Nothing in an executor that knows the session already; it has memory only if it lived in an earlier one.
void SessionManager::restore_memory(Session& session, Executor& executor) {
  for (const auto& [address, chunk] : session.chunks.all()) {
    ExecutorPacket packet;
    packet.header = {ExecutorMessage::chunk_restore, 0, session.id};
    packet.object = packet.address = address;
    packet.size_bytes = chunk.size_bytes;
    const int fd = chunk.handle.get();
    executor.send(packet, {&fd, 1});
  }
  for (const auto& [id, segment] : session.segments.all()) {
    ExecutorPacket packet;
    packet.header = {ExecutorMessage::segment_restore, 0, session.id};
    packet.object = id;
    packet.address = segment.address;
    packet.size_bytes = segment.size_bytes;
    packet.purpose = static_cast<std::uint32_t>(segment.purpose);
    const int fd = segment.file.get();
    executor.send(packet, {&fd, 1});
  }
}

void SessionManager::send_open(Session& session, Executor& executor) {
  ExecutorPacket packet;
  packet.header = {ExecutorMessage::session_open, 0, session.id};
  packet.epoch = session.epoch = executor.epoch();
  packet.client_pid = static_cast<std::uint32_t>(session.client.pid);
  packet.client_uid = session.client.uid;
  packet.device_lease = session.device_lease;
  packet.pinned_lease = session.pinned_lease;
  executor.send(packet, session.channel->fds());
  session.phase = SessionPhase::opening;
}

void SessionManager::send_close(Session& session) {
  ExecutorPacket packet;
  packet.header = {ExecutorMessage::session_close, 0, session.id};
  executor_of(session).send(packet);
}

void SessionManager::request_timed_out(Session& session) {
  log_error("{}: no answer from executor {} within {} ms ({}); the client gets CUDA_ERROR_MPS_SERVER_NOT_READY.", session.name(), session.device,
            limits_.answer.count(), phase_name(session.phase));
  if (session.changing_lease) session.delivered = false;  // it does not know its ranges: its next Attach tells it
  respond(session, CUDA_ERROR_MPS_SERVER_NOT_READY);
}

void SessionManager::respond(Session& session, CUresult status) {
  session.deadline.reset();
  session.changing_lease = false;
  if (status == CUDA_SUCCESS && session.phase == SessionPhase::active) session.delivered = true;
  const Session::Answer answer = std::exchange(session.answer, nullptr);
  if (answer) answer(status, session);
}

// The session cannot be had at all: a new one vanishes, one that lived before is lost.
void SessionManager::refuse(Session& session, CUresult status) {
  if (!session.has_lived) {
    respond(session, status);
    return erase(session);
  }
  lose(session, status);
  respond(session, CUDA_SUCCESS);
}

void SessionManager::session_opened(Session& session, const ExecutorPacket& packet) {
  const auto status = static_cast<CUresult>(packet.header.status);
  if (session.phase == SessionPhase::closing && status != CUDA_SUCCESS) return erase(session);  // nothing was opened, nothing will close
  if (session.phase != SessionPhase::opening) return;
  if (status != CUDA_SUCCESS) {
    log_error("{}: refused by executor {} with CUDA error {}: {}.", session.name(), session.device, static_cast<int>(status), packet.text);
    return refuse(session, status);
  }
  session.phase = SessionPhase::active;
  session.has_lived = true;
  session.deaths_while_opening = 0;
  log_info("{}: attached in {:.1f} ms to executor {} (pid {}), epoch {}, {} MiB of device memory in place.", session.name(),
           milliseconds_since(session.asked_at), session.device, executor_of(session).pid(), session.epoch, session.chunks.total_bytes() >> 20);
  if (session.answer) respond(session, CUDA_SUCCESS);
}

CUresult SessionManager::create_segment(Session& session, const proto::SegmentCreate& request, std::uint64_t& segment, int& file) {
  if (session.phase != SessionPhase::active) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  const char* why = nullptr;
  const std::uint64_t id = next_segment_++;
  const CUresult status = session.segments.create(id, request, session.pinned_lease, why);
  if (status != CUDA_SUCCESS) {
    log_warning("{}: segment of {} bytes at {:#x} refused: {}.", session.name(), request.size_bytes, request.address, why);
    return status;
  }
  segment = id;
  file = session.segments.find(id)->file.get();
  ExecutorPacket packet;
  packet.header = {ExecutorMessage::segment_add, 0, session.id};
  packet.object = id;
  packet.address = request.address;
  packet.size_bytes = request.size_bytes;
  packet.purpose = static_cast<std::uint32_t>(request.purpose);
  executor_of(session).send(packet, {&file, 1});
  return CUDA_SUCCESS;
}

// Only before the session has memory or has sent a record. The executor learns of the new ranges by closing and opening it on the same channel.
void SessionManager::replace_lease(Session& session, const proto::Lease& refused, Session::Answer answer) {
  session.answer = std::move(answer);
  const bool device = same_range(refused, session.device_lease);
  const bool has_memory = !session.chunks.all().empty() || !session.segments.all().empty();
  if (session.phase != SessionPhase::active || !session.delivered || has_memory || !session.channel->is_unused() ||
      (!device && !same_range(refused, session.pinned_lease))) {
    log_warning("{}: asked for a range in place of {:#x} at a moment when it cannot have one.", session.name(), refused.address);
    return respond(session, CUDA_ERROR_INVALID_VALUE);
  }
  session.refused.push_back(refused);
  proto::Lease& lease = device ? session.device_lease : session.pinned_lease;
  const auto other = device ? leases_->take_device(session.refused) : leases_->take_pinned(session.refused);
  if (!other) {
    log_error("{}: no range of addresses is free that it has not refused; widen --window.", session.name());
    return respond(session, CUDA_ERROR_OUT_OF_MEMORY);
  }
  log_info("{}: gets {:#x} in place of {:#x}, which is in use in its process.", session.name(), other->address, refused.address);
  leases_->give_back(std::exchange(lease, *other));
  session.changing_lease = true;
  session.deadline = loop_.after(limits_.answer, [this, id = session.id] { request_timed_out(sessions_.at(id)); });
  session.phase = SessionPhase::reopening;
  send_close(session);
}

void SessionManager::end(Session& session) {
  session.answer = nullptr;
  session.deadline.reset();
  if (!session.in_executor()) return erase(session);
  if (session.phase == SessionPhase::closing) return;
  if (session.phase != SessionPhase::reopening) send_close(session);
  session.phase = SessionPhase::closing;
  session.ended_at = EventLoop::Clock::now();
  check_end(session.id);
}

// A client that is gone has no claim on the GPU: work of it that runs on after the grace costs the executor.
void SessionManager::check_end(std::uint64_t id) {
  Session* session = find(id);
  if (session == nullptr) return;
  Executor& executor = executor_of(*session);
  const auto waited = EventLoop::Clock::now() - session->ended_at;
  if (waited >= limits_.orphan && executor.is_busy(id) && executor.state() == ExecutorState::active) {
    log_warning("{}: its client is gone and its work still runs after {} ms; executor {} is replaced.", session->name(), limits_.orphan.count(),
                session->device);
    begin_replacement(executor);
  } else if (waited >= kSlowEnd && waited < kSlowEnd + limits_.orphan) {
    log_warning("{}: its client is gone, its work has ended, but executor {} has not released it for {:.0f} ms.", session->name(), session->device,
                milliseconds_since(session->ended_at));
  }
  session->end_check = loop_.after(std::max(limits_.orphan, std::chrono::milliseconds(1)), [this, id] { check_end(id); });
}

void SessionManager::session_closed(Session& session) {
  if (session.phase == SessionPhase::closing) return erase(session);
  if (session.phase != SessionPhase::reopening) return;
  Executor& executor = executor_of(session);
  session.channel->write_header(session.id, executor.epoch());
  send_open(session, executor);
}

void SessionManager::erase(Session& session) {
  log_info("{}: ended.", session.name());
  if (leases_) {
    leases_->give_back(session.device_lease);
    leases_->give_back(session.pinned_lease);
  }
  images_.release_session(session.id);
  sessions_.erase(session.id);
}

}  // namespace mpsshim::broker::control
