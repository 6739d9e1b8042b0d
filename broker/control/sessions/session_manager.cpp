// SPDX-License-Identifier: Apache-2.0
// Opening of sessions, and what open ones ask for.
#include "broker/control/sessions/session_manager.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "broker/control/base/complaints.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::chrono::seconds kPatienceInPause{30};  // half the time after which a client takes its connection to be broken
constexpr std::size_t kRangesLogged = 4;              // of a session

double milliseconds_since(EventLoop::Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(EventLoop::Clock::now() - start).count();
}

}  // namespace

SessionManager::SessionManager(EventLoop& loop, ExecutorLauncher& launcher, const ExecutorSettings& executors, const SessionLimits& limits,
                               Events events, CompilerLauncher* compilers, CompilerLauncher* linkers)
    : loop_(loop),
      limits_(limits),
      events_(std::move(events)),
      quota_(limits.resources.user.device_bytes),
      images_(loop),
      pool_(loop, launcher, executors, limits.pool, *this),
      quarantine_(limits.quarantine),
      programs_(loop, [this] { programs_known(); }),
      linker_launcher_(linkers),
      processor_shares_(limits_.user_minute) {
  if (compilers != nullptr) compilers_ = std::make_unique<Compilers>(loop, *compilers, processor_shares_, limits_.compilers);
  if (linkers != nullptr) linkers_ = std::make_unique<Compilers>(loop, *linkers, processor_shares_, limits_.linkers, trade_of_linkers(limits_.link_time));
  if (limits_.relocate_for_tests.count() != 0) {
    relocation_timer_ = loop_.after(limits_.relocate_for_tests, [this] { relocate_for_tests(); });
  }
}

void SessionManager::start() {
  kernel_log_.listen(loop_, [this](const XidLine& line) { fault_told(line); });
  (void)pool_.first(0);
}

void SessionManager::fault_told(const XidLine& line) {
  for (const auto& [id, executor] : pool_.all()) {
    if (line.number == kXidException) executor->rule_out_trap();
    if (executor->pid() == line.pid) executor->expect_fault(line);
  }
}

void SessionManager::quit(CUresult error) {
  quitting_ = true;
  for (auto& [id, session] : sessions_) {
    if (session.channel) session.channel->tell_failed(error);
    if (session.answer) respond(session, error);
  }
  drains_.clear();
  stop_compilers();
  pool_.quit();
}

const proto::DriverFacts* SessionManager::facts() const {
  const auto first = pool_.all().find({0, 0});
  return first == pool_.all().end() ? nullptr : first->second->facts();
}

ClientSession* SessionManager::find(std::uint64_t session) {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

CUresult SessionManager::create(const ClientIdentity& client, unsigned device, ClientSession*& session) {
  if (facts() == nullptr) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  if (device >= facts()->device_count) return CUDA_ERROR_INVALID_DEVICE;
  if (std::string why; !may_open(client, why)) {
    complain("pid {} ({}) is refused: {}.", client.pid, client.command, why);
    return CUDA_ERROR_MPS_MAX_CLIENTS_REACHED;
  }
  const std::uint64_t id = next_session_++;
  session = &sessions_[id];
  session->id = id;
  session->client = client;
  session->device = device;
  if (compilers_) compilers_->expect(client.uid);
  return CUDA_SUCCESS;
}

void SessionManager::attach(ClientSession& session, ClientSession::Answer answer) {
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
    case SessionPhase::lost:
    case SessionPhase::terminating: return respond(session, CUDA_SUCCESS);
    case SessionPhase::reopening:
    case SessionPhase::closing: return respond(session, CUDA_ERROR_MPS_RPC_FAILURE);
  }
  arm_deadline(session);
}

void SessionManager::arm_deadline(ClientSession& session) {
  session.deadline = loop_.after(limits_.answer, [this, id = session.id] { request_timed_out(sessions_.at(id)); });
}

// A client that has objects is held while its executor pauses after too many deaths: an error would be for ever. A new one may try again.
void SessionManager::await_executor(ClientSession& session) {
  if (awaits_program(session)) {
    session.phase = SessionPhase::waiting;
    return arm_deadline(session);
  }
  const bool placed = place(session);
  if (!placed) {
    complain("{}: no executor can be had for user {} now; see the lines above (--executors, the GPU's memory or its compute mode).", session.name(),
             session.client.uid);
  }
  const bool pauses = placed && session.executor->state() == ExecutorState::fault;
  if (!placed || (pauses && !(session.has_lived && session.executor->will_retry()))) return respond(session, CUDA_ERROR_MPS_SERVER_NOT_READY);
  session.phase = SessionPhase::waiting;
  arm_deadline(session);
  if (session.executor->state() == ExecutorState::active && !waits_for_blank_heap(session)) open_in_executor(session);
}

void SessionManager::open_in_executor(ClientSession& session) {
  ManagedExecutor& executor = *session.executor;
  if (!ensure_leases(session)) {
    log_error("{}: no range of addresses is free that it has not refused; widen --window.", session.name());
    return refuse(session, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
  }
  // Lives count up in each executor for itself; what a client sees only ever rises.
  session.epoch = std::max(session.epoch + 1, executor.epoch());
  session.channel = ChannelMemory::make(session.id, session.epoch, session.client.layout_minor);
  if (!session.channel) {
    log_error("{}: its channel could not be made ({}); raise the broker's limit of open files or its memory limit.", session.name(),
              std::strerror(errno));
    return refuse(session, CUDA_ERROR_OUT_OF_MEMORY);
  }
  if (!session.output.is_empty()) session.channel->tell_output(true);
  session.delivered = false;
  restore_memory(session, executor);
  send_open(session, executor);
}

bool SessionManager::ensure_leases(ClientSession& session) {
  if (session.device_lease.size_bytes == 0) session.device_lease = leases_->take_device(session.refused).value_or(proto::Lease{});
  if (session.pinned_lease.size_bytes == 0) session.pinned_lease = leases_->take_pinned(session.refused).value_or(proto::Lease{});
  return session.device_lease.size_bytes != 0 && session.pinned_lease.size_bytes != 0;
}

// Nothing in an executor that knows the session already; it has memory only if it lived in an earlier one.
void SessionManager::restore_memory(ClientSession& session, ManagedExecutor& executor) {
  for (const proto::Lease& lease : session.more_leases) {
    executor.send(message::LeaseRestore{.session = session.id, .lease = lease});
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
    executor.send({message::SegmentRestore{.session = session.id,
                                           .segment = id,
                                           .address = segment.address,
                                           .size_bytes = segment.size_bytes,
                                           .purpose = segment.purpose},
                   {.file = segment.file.get()}});
  }
}

void SessionManager::send_open(ClientSession& session, ManagedExecutor& executor) {
  session.forget_executor();  // the one before
  session.uses_heap = false;
  const auto fds = session.channel->fds();
  executor.send({message::SessionOpen{.session = session.id,
                                      .epoch = session.epoch,
                                      .client_pid = static_cast<std::uint32_t>(session.client.pid),
                                      .client_uid = session.client.uid,
                                      .device_lease = session.device_lease,
                                      .pinned_lease = session.pinned_lease,
                                      .device_limit_bytes = quota_.limit()},
                 {.channel = fds[0], .fences = fds[1], .ring_doorbell = fds[2], .completion_doorbell = fds[3]}});
  session.phase = SessionPhase::opening;
}

void SessionManager::send_close(ClientSession& session) { session.executor->send(message::SessionClose{.session = session.id}); }

void SessionManager::request_timed_out(ClientSession& session) {
  const std::string where = session.executor != nullptr ? session.executor->label() : "of any number";
  const bool is_held = session.phase == SessionPhase::waiting && session.has_lived && session.executor != nullptr && session.executor->will_retry();
  if (is_held && EventLoop::Clock::now() - session.asked_at < kPatienceInPause) return arm_deadline(session);
  log_error("{}: no answer from executor {} within {:.0f} ms ({}); the client gets CUDA_ERROR_MPS_SERVER_NOT_READY.", session.name(),
            where, milliseconds_since(session.asked_at), phase_name(session.phase));
  if (session.changing_lease) session.delivered = false;  // it does not know its ranges: its next Attach tells it
  respond(session, CUDA_ERROR_MPS_SERVER_NOT_READY);
}

void SessionManager::respond(ClientSession& session, CUresult status) {
  session.deadline.reset();
  session.changing_lease = false;
  if (status == CUDA_SUCCESS && session.phase == SessionPhase::active) session.delivered = true;
  const ClientSession::Answer answer = std::exchange(session.answer, nullptr);
  if (answer) answer(status, session);
}

// The session cannot be had at all: a new one vanishes, one that lived before is lost.
void SessionManager::refuse(ClientSession& session, CUresult status) {
  if (!session.has_lived) {
    respond(session, status);
    return erase(session);
  }
  lose(session, status);
  respond(session, CUDA_SUCCESS);
}

void SessionManager::session_opened(ClientSession& session, CUresult status) {
  const bool is_ending = session.phase == SessionPhase::closing || session.phase == SessionPhase::terminating;
  if (is_ending && status != CUDA_SUCCESS) return session_closed(session);  // nothing was opened, nothing will close
  if (session.phase != SessionPhase::opening) return;
  if (status != CUDA_SUCCESS) {
    log_error("{}: refused by executor {} with CUDA error {}.", session.name(), session.executor->label(), static_cast<int>(status));
    return refuse(session, status);
  }
  session.phase = SessionPhase::active;
  session.event_times_hold = false;  // from now on it may record events anew
  session.event_times.reset();
  const pid_t server = session.executor->pid();
  if (!std::exchange(session.has_lived, true))
    log_server(server, "New client {} connected from user {}: {}.", session.server_name(), session.client.uid, session.client.command);
  log_server(server, "Status of client {} is ACTIVE.", session.server_name());
  session.deaths_while_opening = 0;
  log_info("{}: attached in {:.1f} ms to executor {} (pid {}), epoch {}, {} MiB of device memory in place.", session.name(),
           milliseconds_since(session.asked_at), session.executor->label(), session.executor->pid(), session.epoch,
           session.chunks.total_bytes() >> 20);
  if (session.answer) respond(session, CUDA_SUCCESS);
}

// Only before the session has memory or has sent a record. The executor learns of the new ranges by closing and opening it on the same channel.
void SessionManager::replace_lease(ClientSession& session, const proto::Lease& refused, ClientSession::Answer answer) {
  session.answer = std::move(answer);
  const bool device = same_range(refused, session.device_lease);
  const bool has_memory = !session.chunks.all().empty() || !session.segments.all().empty();
  if (session.phase != SessionPhase::active || !session.delivered || has_memory || !session.channel->is_unused() ||
      (!device && !same_range(refused, session.pinned_lease))) {
    complain("{}: asked for a range in place of {:#x} at a moment when it cannot have one.", session.name(), refused.address);
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
  session.asked_at = EventLoop::Clock::now();
  arm_deadline(session);
  session.phase = SessionPhase::reopening;
  send_close(session);
}

// Announced to the executor before the client learns of it, as a segment is.
std::optional<proto::Lease> SessionManager::add_lease(ClientSession& session, std::uint64_t size_bytes) {
  if (session.phase != SessionPhase::active) return std::nullopt;
  const bool has_many = session.more_leases.size() >= limits_.resources.further_leases;
  const auto lease = has_many ? std::nullopt : leases_->take_more(size_bytes, sessions_.size());
  if (!lease) {
    complain("{}: its range of addresses has no room for {} MiB more, and no other is free; widen --window.", session.name(), size_bytes >> 20);
    return std::nullopt;
  }
  // A client may ask for many.
  if (session.more_leases.size() < kRangesLogged) {
    log_info("{}: gets a further range of {} MiB at {:#x}.", session.name(), lease->size_bytes >> 20, lease->address);
  }
  session.more_leases.push_back(*lease);
  session.executor->send(message::LeaseAdd{.session = session.id, .lease = *lease});
  return lease;
}

void SessionManager::lease_released(ClientSession& session, std::uint64_t address) {
  const auto found = std::ranges::find(session.more_leases, address, &proto::Lease::address);
  if (found == session.more_leases.end()) return;
  leases_->give_back(*found);
  session.more_leases.erase(found);
}

}  // namespace mpsshim::broker::control
