// SPDX-License-Identifier: Apache-2.0
#include "broker/control/restarts/session_handover.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace mpsshim::broker::control {

namespace {

void save_leases(StateWriter& state, const std::vector<proto::Lease>& leases) {
  state.number(leases.size());
  for (const proto::Lease& lease : leases) state.plain(lease);
}

std::vector<proto::Lease> restore_leases(StateReader& state) {
  std::vector<proto::Lease> leases;
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) leases.push_back(state.plain<proto::Lease>());
  return leases;
}

// One above it; 0: there is none.
std::optional<std::uint32_t> restore_priority(StateReader& state) {
  const std::uint64_t value = state.number();
  return value == 0 ? std::nullopt : std::optional(static_cast<std::uint32_t>(value - 1));
}

void save_memory(StateWriter& state, const ClientSession& session) {
  state.number(session.segments.all().size());
  for (const auto& [id, segment] : session.segments.all()) {
    state.number(id);
    state.number(static_cast<std::uint32_t>(segment.purpose));
    state.number(segment.address);
    state.number(segment.size_bytes);
    state.number(segment.is_peers ? 1 : 0);
    state.file(segment.file);
  }
  state.number(session.chunks.all().size());
  for (const auto& [address, chunk] : session.chunks.all()) {
    state.number(address);
    state.number(chunk.size_bytes);
    state.number(chunk.charge->number());
    state.number(chunk.charge->device());
    state.file(chunk.handle);
  }
  state.number(session.channel ? 1 : 0);
  if (!session.channel) return;
  for (const int fd : session.channel->fds()) state.file(fd);
}

void save_session(StateWriter& state, const ClientSession& session) {
  state.number(session.id);
  state.number(static_cast<std::uint64_t>(session.client.pid));
  state.number(session.client.uid);
  state.text(session.client.command);
  state.number(session.client.layout_minor);
  state.number(session.device);
  state.number(static_cast<std::uint64_t>(session.phase));
  state.number(session.epoch);
  state.number(static_cast<std::uint64_t>(session.lost_error));
  state.number(session.deaths_while_opening);
  state.number(session.has_lived ? 1 : 0);
  state.number(session.memory_limit_bytes ? 1 : 0);
  state.number(session.memory_limit_bytes.value_or(session.asked_memory_limit_bytes));
  state.number(session.thread_percentage ? 1 : 0);
  state.number(session.thread_percentage.value_or(session.asked_thread_percentage));
  state.number(session.client_priority ? 1 + *session.client_priority : 0);
  state.number(session.asked_client_priority ? 1 + *session.asked_client_priority : 0);
  state.text(session.name_space);
  state.plain(session.device_lease);
  state.plain(session.pinned_lease);
  save_leases(state, session.more_leases);
  save_leases(state, session.refused);
  save_memory(state, session);
  state.number(session.output.pieces().size());
  for (const OutputBox::Piece& piece : session.output.pieces()) {
    state.number(piece.stream);
    state.text(piece.text);
  }
  state.file(session.event_times_hold ? session.event_times.get() : -1);
  state.file(session.variables);
  const SessionCountsStore::Values counts = session.counts.read().value_or(SessionCountsStore::Values{});
  state.number(static_cast<std::uint64_t>(session.began_at.time_since_epoch().count()));
  state.number(counts.gpu_ns);
  state.number(counts.launches);
  save_leases(state, session.peer_leases);
  state.number(counts.waits);
  state.number(counts.wait_ns);
  save_leases(state, session.peer_pinned_leases);
  state.number(session.sm_partition);
}

}  // namespace

void SessionHandover::save(StateWriter& state) const {
  state.file(parts_.facts.file());
  state.number(parts_.sessions.next_id());
  state.number(parts_.segments.next_segment());
  parts_.images.save(state);
  const auto& executors = parts_.pool.all();
  state.number(executors.size());
  for (const auto& [id, executor] : executors) {
    state.number(id.device);
    state.number(id.ordinal);
    state.number(id.user);
    state.number(executor->epoch());
    state.text(executor->driver());
    state.number(static_cast<std::uint64_t>(executor->number().number()));
    state.number(executor->number().pids().size());
    for (const pid_t pid : executor->number().pids()) state.number(static_cast<std::uint64_t>(pid));
  }
  state.number(parts_.sessions.size());
  for (const auto& [id, session] : parts_.sessions.all()) save_session(state, session);
  parts_.ledger.save(state);
  parts_.memory_limits.save(state);
  parts_.thread_percentages.save(state);
  state.number(parts_.default_client_priority);
  parts_.namespaces.save(state);
  parts_.partitions.save(state);
}

void SessionHandover::restore_memory(StateReader& state, ClientSession& session, Charges& charges) const {
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
    const std::uint64_t id = state.number();
    const auto purpose = static_cast<proto::SegmentPurpose>(state.number());
    const std::uint64_t address = state.number();
    const std::uint64_t size_bytes = state.number();
    const bool is_peers = state.version() >= 13 && state.number() != 0;
    session.segments.adopt(id, {purpose, address, size_bytes, state.file(), is_peers});
  }
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
    const std::uint64_t address = state.number();
    const std::uint64_t size_bytes = state.number();
    // Sessions that share memory are charged once.
    const std::uint64_t number = state.version() >= 5 ? state.number() : 0;
    const unsigned device = state.version() >= 11 ? static_cast<unsigned>(state.number()) : session.device;
    DeviceChargeRef& charge = charges[number];
    if (charge == nullptr || number == 0) charge = parts_.quota.add(device, session.client.uid, session.device_held, size_bytes);
    session.chunks.add(address, size_bytes, state.file(), charge);
  }
  if (state.number() == 0) return;
  std::array<proto::FileDescriptor, 4> fds;
  for (proto::FileDescriptor& fd : fds) fd = state.file();
  session.channel = ChannelMemory::adopt(std::move(fds));
  if (!session.channel) state.fail();
}

void SessionHandover::restore_session(StateReader& state, Charges& charges) const {
  ClientSession& session = parts_.sessions.adopt(state.number());
  session.client.pid = static_cast<pid_t>(state.number());
  session.client.uid = static_cast<uid_t>(state.number());
  session.client.command = state.text();
  session.client.pod = pod_of(session.client.pid);
  session.client.program = parts_.ledger.programs().identify(session.client.pid, session.client.uid, {});
  session.client.layout_minor = static_cast<std::uint32_t>(state.number());
  session.device = static_cast<unsigned>(state.number());
  session.phase = static_cast<SessionPhase>(state.number());
  session.epoch = state.number();
  session.lost_error = static_cast<CUresult>(state.number());
  session.deaths_while_opening = static_cast<unsigned>(state.number());
  session.has_lived = state.number() != 0;
  if (state.version() >= 8) {
    const bool is_set = state.number() != 0;
    const std::uint64_t bytes = state.number();
    if (is_set) session.memory_limit_bytes = bytes;
    session.asked_memory_limit_bytes = bytes;
  }
  if (state.version() >= 10) {
    const bool is_set = state.number() != 0;
    const auto percentage = static_cast<std::uint32_t>(state.number());
    if (is_set) session.thread_percentage = percentage;
    session.asked_thread_percentage = percentage;
    session.client_priority = restore_priority(state);
    session.asked_client_priority = restore_priority(state);
    if (state.version() >= 11) session.name_space = state.text();
  }
  session.device_lease = state.plain<proto::Lease>();
  session.pinned_lease = state.plain<proto::Lease>();
  session.more_leases = restore_leases(state);
  session.refused = restore_leases(state);
  restore_memory(state, session, charges);
  for (std::uint64_t left = state.version() >= 2 ? state.number() : 0; left > 0 && state.ok(); --left) {
    const auto stream = static_cast<std::uint32_t>(state.number());
    session.output.add(stream, state.text());
  }
  if (state.version() >= 3) session.event_times = state.file();
  session.event_times_hold = session.event_times.valid();
  if (state.version() >= 6) session.variables = state.file();
  SessionCountsStore::Values counts;
  if (state.version() >= 9) {
    session.began_at = EventLoop::Clock::time_point(EventLoop::Clock::duration(static_cast<EventLoop::Clock::rep>(state.number())));
    counts.gpu_ns = state.number();
    counts.launches = state.number();
  }
  if (state.version() >= 11) session.peer_leases = restore_leases(state);
  if (state.version() >= 12) {
    counts.waits = state.number();
    counts.wait_ns = state.number();
  }
  session.counts.set(counts);
  if (state.version() >= 13) session.peer_pinned_leases = restore_leases(state);
  if (state.version() >= 14) session.sm_partition = static_cast<std::uint32_t>(state.number());
  const bool waits = session.phase == SessionPhase::waiting || session.phase == SessionPhase::moved || session.phase == SessionPhase::lost;
  if (!parts_.ranges.claim(session) || !waits) state.fail();
}

std::vector<SessionHandover::FormerExecutor> SessionHandover::read_executors(StateReader& state) {
  std::vector<FormerExecutor> executors;
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
    FormerExecutor& former = executors.emplace_back();
    former.id.device = static_cast<unsigned>(state.number());
    former.id.ordinal = static_cast<unsigned>(state.number());
    if (state.version() >= 4) former.id.user = static_cast<uid_t>(state.number());
    former.epoch = state.number();
    former.driver = state.text();
    if (state.version() < 7) continue;
    const auto number = static_cast<pid_t>(state.number());
    std::vector<pid_t> pids;
    for (std::uint64_t pids_left = state.number(); pids_left > 0 && state.ok(); --pids_left) pids.push_back(static_cast<pid_t>(state.number()));
    former.number.resume(number, std::move(pids));
  }
  return executors;
}

bool SessionHandover::restore(StateReader& state, std::string& why) {
  facts_ = parts_.facts.resume(state.file());
  parts_.sessions.go_on_from(state.number());
  parts_.segments.go_on_from(state.number());
  parts_.images.restore(state);
  if (!state.ok() || !facts_) return why = "the images or the driver's facts that were handed over are not complete", false;
  executors_ = read_executors(state);
  parts_.ranges.make(*facts_);
  Charges charges;
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) restore_session(state, charges);
  if (state.version() >= 5) parts_.ledger.restore(state);
  if (state.version() >= 8) parts_.memory_limits.restore(state);
  if (state.version() >= 10) parts_.thread_percentages.restore(state);
  if (state.version() >= 10) parts_.default_client_priority = static_cast<std::uint32_t>(state.number());
  if (state.version() >= 11) parts_.namespaces.restore(state);
  if (state.version() >= 14) parts_.partitions.restore(state);
  if (!state.ok()) return why = "the sessions that were handed over are not complete, or their addresses not in --window", false;
  return true;
}

void SessionHandover::start_executors() {
  // The device's own first: others take what driver it has found to serve.
  std::stable_partition(executors_.begin(), executors_.end(), [](const FormerExecutor& former) { return former.id == ExecutorId{}; });
  for (const FormerExecutor& former : executors_) {
    if (former.id.ordinal == 0) {
      parts_.pool.resume(former.id, former.epoch, former.driver, *facts_, former.number);
    } else {
      parts_.images.forget_log(former.id);
    }
  }
}

}  // namespace mpsshim::broker::control
