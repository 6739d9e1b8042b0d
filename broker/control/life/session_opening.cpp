// SPDX-License-Identifier: Apache-2.0
#include "broker/control/life/session_opening.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "broker/control/base/complaints.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::chrono::seconds kPatienceInPause{30};  // half the time after which a client takes its connection to be broken

double milliseconds_since(EventLoop::Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(EventLoop::Clock::now() - start).count();
}

}  // namespace

void SessionOpening::attach(ClientSession& session, ClientSession::Answer answer) {
  session.answer = std::move(answer);
  session.asked_at = EventLoop::Clock::now();
  switch (session.phase) {
    case SessionPhase::waiting:
    case SessionPhase::moved: return await_executor(session);
    case SessionPhase::opening: break;  // an earlier request ran out of time; this one gets the channel
    case SessionPhase::active:
      if (!session.delivered) return session.respond(CUDA_SUCCESS);
      // The client has a channel that works, unless its executor ended the session for what the client did.
      if (const std::uint32_t error = session.channel->failure(); error != 0) {
        session.lost_error = static_cast<CUresult>(error);
        return session.respond(CUDA_SUCCESS);
      }
      return session.respond(CUDA_ERROR_MPS_RPC_FAILURE);
    case SessionPhase::lost:
    case SessionPhase::terminating: return session.respond(CUDA_SUCCESS);
    case SessionPhase::reopening:
    case SessionPhase::closing: return session.respond(CUDA_ERROR_MPS_RPC_FAILURE);
  }
  arm_deadline(session);
}

void SessionOpening::arm_deadline(ClientSession& session) {
  session.deadline = loop_.after(limits_.answer, [this, id = session.id] { timed_out(sessions_.at(id)); });
}

// A newcomer whose program may be one in quarantine, or one whose kernels block executors; the reader has a limit.
bool SessionOpening::awaits_program(const ClientSession& session) const {
  if (session.executor != nullptr || session.client.program->is_known) return false;
  if (ledger_.concerns(session.client.uid)) return true;
  return std::ranges::any_of(pool_.all(), [&](const auto& entry) {
    return entry.first.device == session.device && entry.first.user == limits_.house_of(session.client.uid) && entry.second->is_blocked();
  });
}

void SessionOpening::programs_known() {
  std::vector<std::uint64_t> waiting;  // answering may end a session
  for (const auto& [id, session] : sessions_.all()) {
    const bool waits = session.phase == SessionPhase::waiting && session.answer && session.executor == nullptr;
    if (waits && session.client.program->is_known) waiting.push_back(id);
  }
  for (const std::uint64_t id : waiting) await_executor(sessions_.at(id));
}

// A client that has objects is held while its executor pauses after too many deaths: an error would be for ever. A new one may try again.
void SessionOpening::await_executor(ClientSession& session) {
  // What may fault is run where nobody else is, or not at all.
  if (session.trial && session.executor == nullptr) return ends_.refuse(session, CUDA_ERROR_MPS_SERVER_NOT_READY);
  if (awaits_program(session)) {
    session.phase = SessionPhase::waiting;
    return arm_deadline(session);
  }
  const bool placed = choice_.place(session);
  if (!placed) {
    complain("{}: no executor can be had for user {} now; see the lines above (--executors, the GPU's memory or its compute mode).", session.name(),
             session.client.uid);
  }
  const bool pauses = placed && session.executor->state() == ExecutorState::fault;
  if (!placed || (pauses && !(session.has_lived && session.executor->will_retry()))) return session.respond(CUDA_ERROR_MPS_SERVER_NOT_READY);
  session.phase = SessionPhase::waiting;
  arm_deadline(session);
  if (settings_.awaits_turn(session)) return;
  if (session.executor->state() == ExecutorState::active && !settings_.is_held_back(session)) open_in_executor(session);
}

void SessionOpening::serve(ManagedExecutor& executor) {
  std::vector<std::uint64_t> waiting;  // opening may end a session
  for (const auto& [id, session] : sessions_.all()) {
    if (session.executor == &executor && session.phase == SessionPhase::waiting && session.answer) waiting.push_back(id);
  }
  for (const std::uint64_t id : waiting) {
    ClientSession& session = sessions_.at(id);
    if (!settings_.awaits_turn(session)) open_in_executor(session);
  }
}

std::vector<std::uint64_t> SessionOpening::waiting_for(const ManagedExecutor& executor) const {
  std::vector<std::uint64_t> waiting;
  for (const auto& [id, session] : sessions_.all()) {
    if (session.executor == &executor && session.answer) waiting.push_back(id);
  }
  return waiting;
}

void SessionOpening::open_in_executor(ClientSession& session) {
  ManagedExecutor& executor = *session.executor;
  if (!ranges_.ensure(session)) {
    log_error("{}: no range of addresses is free that it has not refused; widen --window.", session.name());
    return ends_.refuse(session, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
  }
  // Lives count up in each executor for itself; what a client sees only ever rises.
  session.epoch = std::max(session.epoch + 1, executor.epoch());
  session.channel = ChannelMemory::make(session.id, session.epoch, session.client.layout_minor);
  if (!session.channel) {
    log_error("{}: its channel could not be made ({}); raise the broker's limit of open files or its memory limit.", session.name(),
              std::strerror(errno));
    return ends_.refuse(session, CUDA_ERROR_OUT_OF_MEMORY);
  }
  if (!session.output.is_empty()) session.channel->tell_output(true);
  session.delivered = false;
  restore_memory(session, executor);
  send_open(session, executor);
}

// Nothing in an executor that knows the session already; it has memory only if it lived in an earlier one.
void SessionOpening::restore_memory(const ClientSession& session, ManagedExecutor& executor) {
  for (const proto::Lease& lease : session.more_leases) {
    executor.send(message::LeaseRestore{.session = session.id, .lease = lease});
  }
  for (const proto::Lease& lease : session.peer_leases) {
    executor.send(message::LeaseRestore{.session = session.id, .lease = lease, .is_peers = 1});
  }
  if (session.variables.valid()) {
    executor.send({message::VariablesRestore{.session = session.id}, {.variables = session.variables.get()}});
  }
  if (session.event_times_hold && session.event_times.valid()) {
    executor.send({message::EventTimesRestore{.session = session.id}, {.times = session.event_times.get()}});
  }
  for (const auto& [address, chunk] : session.chunks.all()) {
    executor.send({message::ChunkRestore{.session = session.id, .chunk = address, .size_bytes = chunk.size_bytes}, {.handle = chunk.handle.get()}});
  }
  for (const auto& [id, segment] : session.segments.all()) {
    executor.send(
        {message::SegmentRestore{
             .session = session.id, .segment = id, .address = segment.address, .size_bytes = segment.size_bytes, .purpose = segment.purpose, .is_peers = segment.is_peers ? 1u : 0u},
         {.file = segment.file.get()}});
  }
}

void SessionOpening::send_open(ClientSession& session, ManagedExecutor& executor) {
  session.forget_executor();  // the one before
  if (!session.memory_limit_bytes) session.memory_limit_bytes = settings_.memory_limit(session, executor);
  if (!session.thread_percentage) session.thread_percentage = settings_.thread_percentage(session, executor);
  if (!session.client_priority) session.client_priority = settings_.client_priority(session);
  session.uses_heap = false;
  const SessionTerms terms = settings_.terms(session);
  session.told_chunks = terms.chunks;
  const auto lent = session.channel->lent();
  executor.send(
      {message::SessionOpen{.session = session.id,
                            .epoch = session.epoch,
                            .client_pid = static_cast<std::uint32_t>(session.client.pid),
                            .client_uid = session.client.uid,
                            .device_lease = session.device_lease,
                            .pinned_lease = session.pinned_lease,
                            .device_limit_bytes = terms.device_limit_bytes,
                            .thread_percentage = terms.thread_percentage,
                            .client_priority = terms.client_priority,
                            .group = terms.group,
                            .group_percentage = terms.group_percentage,
                            .chunks = terms.chunks},
       {.channel = lent.channel, .fences = lent.fences, .ring_doorbell = lent.ring_doorbell, .completion_doorbell = lent.completion_doorbell}});
  session.phase = SessionPhase::opening;
}

void SessionOpening::timed_out(ClientSession& session) {
  const std::string where = session.executor != nullptr ? session.executor->label() : "of any number";
  const bool is_held = session.phase == SessionPhase::waiting && session.has_lived && session.executor != nullptr && session.executor->will_retry();
  if (is_held && EventLoop::Clock::now() - session.asked_at < kPatienceInPause) return arm_deadline(session);
  log_error("{}: no answer from executor {} within {:.0f} ms ({}); the client gets CUDA_ERROR_MPS_SERVER_NOT_READY.", session.name(), where,
            milliseconds_since(session.asked_at), phase_name(session.phase));
  if (session.changing_lease) session.delivered = false;  // it does not know its ranges: its next Attach tells it
  session.respond(CUDA_ERROR_MPS_SERVER_NOT_READY);
}

void SessionOpening::opened(ClientSession& session, CUresult status) {
  if (session.phase != SessionPhase::opening) return;
  if (status != CUDA_SUCCESS) {
    log_error("{}: refused by executor {} with CUDA error {}.", session.name(), session.executor->label(), static_cast<int>(status));
    return ends_.refuse(session, status);
  }
  session.phase = SessionPhase::active;
  session.event_times_hold = false;  // from now on it may record events anew
  session.event_times.reset();
  const pid_t server = session.executor->pid();
  if (!std::exchange(session.has_lived, true))
    log_server(server, "New client {} connected from user {}: {}.", session.server_name(), session.client.uid, session.client.command);
  log_server(server, "Status of client {} is ACTIVE.", session.server_name());
  session.deaths_while_opening = 0;
  probation_.served(session);
  log_info("{}: attached in {:.1f} ms to executor {} (pid {}), epoch {}, {} MiB of device memory in place; it has {}.", session.name(),
           milliseconds_since(session.asked_at), session.executor->label(), session.executor->pid(), session.epoch,
           session.chunks.total_bytes() >> 20, session.provision_text());
  if (session.answer) session.respond(CUDA_SUCCESS);
}

void SessionOpening::reopen(ClientSession& session) {
  session.channel->write_header(session.id, session.epoch, session.client.layout_minor);
  send_open(session, *session.executor);
}

// Only before the session has memory or has sent a record. The executor learns of the new ranges by closing and opening it on the same channel.
void SessionOpening::replace_lease(ClientSession& session, const proto::Lease& refused, ClientSession::Answer answer) {
  session.answer = std::move(answer);
  const bool is_its_own = same_range(refused, session.device_lease) || same_range(refused, session.pinned_lease);
  const bool has_memory = !session.chunks.all().empty() || !session.segments.all().empty();
  if (session.phase != SessionPhase::active || !session.delivered || has_memory || !session.channel->is_unused() || !is_its_own) {
    complain("{}: asked for a range in place of {:#x} at a moment when it cannot have one.", session.name(), refused.address);
    return session.respond(CUDA_ERROR_INVALID_VALUE);
  }
  if (!ranges_.replace(session, refused)) {
    log_error("{}: no range of addresses is free that it has not refused; widen --window.", session.name());
    return session.respond(CUDA_ERROR_OUT_OF_MEMORY);
  }
  session.changing_lease = true;
  session.asked_at = EventLoop::Clock::now();
  arm_deadline(session);
  session.phase = SessionPhase::reopening;
  session.executor->send(message::SessionClose{.session = session.id});
}

}  // namespace mpsshim::broker::control
