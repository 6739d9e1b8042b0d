// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/link/control_link.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include <unistd.h>

#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {
constexpr std::chrono::milliseconds kSendAgain{1};
constexpr unsigned kAnnouncedTimeoutMs = 60'000;  // for a control process that is busy; without one the executor ends
}

void ControlLink::send(const ExecutorPacket& packet, std::span<const int> fds) {
  std::lock_guard lock(send_mutex_);
  proto::SocketStatus status = proto::send_message(socket_, packet, fds);
  // Of this user's processes one has too many descriptors in sockets. What is to be sent is somebody's memory: it has to arrive.
  while (status == proto::SocketStatus::failed && proto::is_shortage(errno)) {
    std::this_thread::sleep_for(kSendAgain);
    status = proto::send_message(socket_, packet, fds);
  }
  if (status != proto::SocketStatus::ok) log_error("The control process could not be told message {}", static_cast<unsigned>(packet.header.type));
}

// False: it is over.
bool ControlLink::receive(ExecutorPacket& packet, proto::ReceivedFds& fds) {
  for (;;) {
    std::size_t received = 0;
    const proto::SocketStatus status = socket_.receive(std::as_writable_bytes(std::span(&packet, 1)), received, fds);
    if (status == proto::SocketStatus::closed || status == proto::SocketStatus::failed) return false;
    if (status == proto::SocketStatus::ok && received == sizeof packet) return packet.header.type != ExecutorMessage::quit;
    log_error("A message of {} bytes from the control process is not understood and was left out", received);
  }
}

ControlLink::InOrder ControlLink::note(LogKind kind, std::uint64_t object, std::uint64_t copy, std::uint64_t session, std::uint32_t flags) {
  InOrder in_order(order_mutex_);
  ExecutorPacket packet;
  packet.header = {ExecutorMessage::module_note, 0, session};
  packet.object = object;
  packet.address = copy;
  packet.purpose = static_cast<std::uint32_t>(kind);
  packet.flags = flags;
  send(packet);
  return in_order;
}

void ControlLink::run(const Handler& handler) {
  receiver_ = std::this_thread::get_id();
  for (;;) {
    Deferred next;
    if (!deferred_.empty()) {
      next = std::move(deferred_.front());
      deferred_.pop_front();
    } else if (is_over_ || !receive(next.packet, next.fds)) {
      return;
    }
    file(next.packet, next.fds, handler);
  }
}

// By the thread that receives. What has to be handled in its order waits for run().
void ControlLink::receive_until(const std::function<bool()>& is_enough) {
  while (!is_over_ && !is_enough()) {
    ExecutorPacket packet;
    proto::ReceivedFds fds;
    is_over_ = !receive(packet, fds);
    if (is_over_) return;
    file(packet, fds, [&](const ExecutorPacket& other, proto::ReceivedFds& its) { deferred_.push_back({other, std::move(its)}); });
  }
}

bool ControlLink::await(ExecutorMessage type) {
  for (;;) {
    ExecutorPacket packet;
    proto::ReceivedFds fds;
    if (!receive(packet, fds)) return false;
    if (packet.header.type == type) return true;
    log_error("Message {} came where {} is awaited, and was left out", static_cast<unsigned>(packet.header.type), static_cast<unsigned>(type));
  }
}

void ControlLink::file(const ExecutorPacket& packet, proto::ReceivedFds& fds, const Handler& handler) {
  if (packet.header.type == ExecutorMessage::image_give) {
    std::lock_guard lock(mutex_);
    const auto asked = images_.find(packet.address);
    if (asked == images_.end()) return;  // whoever asked has given up
    FetchedImage& fetched = asked->second.emplace();
    fetched.status = static_cast<CUresult>(packet.header.status);
    fetched.log = packet.text;
    if (fds.count > 0) fetched.image = std::move(fds.fds[0]);
    if (fds.count > 1) fetched.prepared = std::move(fds.fds[1]);
    if (fetched.status == CUDA_SUCCESS && !fetched.image.valid()) fetched.status = CUDA_ERROR_OUT_OF_MEMORY;
    arrived_.notify_all();
    return;
  }
  if (packet.header.type == ExecutorMessage::lease_add) {
    std::lock_guard lock(mutex_);
    leases_[{packet.header.session, packet.device_lease.address}] = packet.device_lease;
    arrived_.notify_all();
    return;
  }
  if (packet.header.type == ExecutorMessage::memory_grant) {
    std::lock_guard lock(mutex_);
    const auto asked = memory_answers_.find(packet.object);
    if (asked == memory_answers_.end()) return;  // whoever asked has given up, and given it back
    asked->second = {static_cast<CUresult>(packet.header.status), packet.object, packet.size_bytes};
    arrived_.notify_all();
    return;
  }
  if (packet.header.type == ExecutorMessage::settled) {
    std::lock_guard lock(mutex_);
    settles_answered_ = packet.object;
    arrived_.notify_all();
    return;
  }
  if (packet.header.type == ExecutorMessage::piece_add && fds.count == 1) {
    std::lock_guard lock(mutex_);
    pieces_[{packet.header.session, packet.object}] = {packet.size_bytes, packet.purpose, packet.address, std::move(fds.fds[0])};
    arrived_.notify_all();
    return;
  }
  if (packet.header.type == ExecutorMessage::segment_add && fds.count == 1) {
    std::lock_guard lock(mutex_);
    segments_[{packet.header.session, packet.object}] = {static_cast<proto::SegmentPurpose>(packet.purpose), packet.address, packet.size_bytes,
                                                         std::move(fds.fds[0])};
    arrived_.notify_all();
    return;
  }
  handler(packet, fds);
}

ControlLink::FetchedImage ControlLink::fetch_image(std::uint64_t session, std::uint64_t image, const ImageTarget& target, unsigned timeout_ms) {
  ExecutorPacket want;
  want.header = {ExecutorMessage::image_want, 0, session};
  want.object = image;
  want.purpose = target.compute;
  want.flags = (target.has_objects ? kImageHasObjects : 0) | (target.runs_texts ? kImageForTexts : 0);
  return ask(want, {}, timeout_ms);
}

ControlLink::FetchedImage ControlLink::check_input(std::uint64_t session, const proto::FileDescriptor& input, CUjitInputType type,
                                                   unsigned timeout_ms) {
  ExecutorPacket check;
  check.header = {ExecutorMessage::image_check, 0, session};
  check.purpose = static_cast<std::uint32_t>(type);
  const int fd = input.get();
  return ask(check, {&fd, 1}, timeout_ms);
}

ControlLink::FetchedImage ControlLink::link(std::uint64_t session, std::uint64_t image, std::uint32_t flags, const proto::FileDescriptor& request,
                                            unsigned timeout_ms) {
  ExecutorPacket want;
  want.header = {ExecutorMessage::link_want, 0, session};
  want.object = image;
  want.flags = flags;
  want.client_pid = static_cast<std::uint32_t>(getpid());
  const int fd = request.get();
  return ask(want, {&fd, 1}, timeout_ms);
}

ControlLink::FetchedImage ControlLink::ask(ExecutorPacket& question, std::span<const int> fds, unsigned timeout_ms) {
  std::unique_lock lock(mutex_);
  question.address = ++images_asked_;
  const auto asked = images_.try_emplace(question.address).first;
  lock.unlock();
  send(question, fds);
  const bool receives = std::this_thread::get_id() == receiver_.load();
  if (receives) {
    receive_until([&] {
      const std::lock_guard look(mutex_);
      return asked->second.has_value();
    });
  }
  lock.lock();
  if (!receives) arrived_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return asked->second.has_value(); });
  FetchedImage fetched;
  if (asked->second) {
    fetched = std::move(*asked->second);
  } else {
    fetched.log = "the broker did not give the image in time";
  }
  images_.erase(asked);
  return fetched;
}

ControlLink::MemoryAnswer ControlLink::ask_for_memory(std::uint64_t session, std::uint64_t size_bytes) {
  ExecutorPacket want;
  want.header = {ExecutorMessage::memory_want, 0, session};
  want.size_bytes = size_bytes;
  std::unique_lock lock(mutex_);
  want.object = ++memory_asked_;
  const auto asked = memory_answers_.try_emplace(want.object).first;
  lock.unlock();
  send(want);
  lock.lock();
  arrived_.wait_for(lock, std::chrono::milliseconds(kAnnouncedTimeoutMs), [&] { return asked->second.has_value(); });
  const std::optional<MemoryAnswer> answer = asked->second;
  memory_answers_.erase(asked);
  lock.unlock();
  if (answer) return *answer;
  log_warning("Session {}: the control process has not said within {} s whether it may have {} MiB of device memory; the call fails", session,
              kAnnouncedTimeoutMs / 1000, size_bytes >> 20);
  give_memory_back(session, want.object);
  return {};
}

void ControlLink::give_memory_back(std::uint64_t session, std::uint64_t number) {
  ExecutorPacket back;
  back.header = {ExecutorMessage::memory_back, 0, session};
  back.object = number;
  send(back);
}

template <class Kind>
CUresult ControlLink::take(std::map<Announced, Kind>& announced, Announced which, const IsGone& is_gone, Kind& taken) {
  const auto is_here = [&] {
    const std::lock_guard lock(mutex_);
    auto node = announced.extract(which);
    if (!node.empty()) taken = std::move(node.mapped());
    return !node.empty();
  };
  if (is_here()) return CUDA_SUCCESS;
  const bool was_answered = settle(kAnnouncedTimeoutMs, is_gone);
  if (is_here()) return CUDA_SUCCESS;
  if (was_answered) return CUDA_ERROR_INVALID_VALUE;
  log_warning("Session {}: the control process has not said within {} s what the session has from it; the call fails", which.first,
              kAnnouncedTimeoutMs / 1000);
  return CUDA_ERROR_MPS_RPC_FAILURE;
}

CUresult ControlLink::take_segment(std::uint64_t session, std::uint64_t segment, const IsGone& is_gone, ReceivedSegment& taken) {
  return take(segments_, {session, segment}, is_gone, taken);
}

CUresult ControlLink::take_piece(std::uint64_t session, std::uint64_t memory, const IsGone& is_gone, ReceivedPiece& taken) {
  return take(pieces_, {session, memory}, is_gone, taken);
}

CUresult ControlLink::take_lease(std::uint64_t session, std::uint64_t address, const IsGone& is_gone, proto::Lease& taken) {
  return take(leases_, {session, address}, is_gone, taken);
}

bool ControlLink::forget_lease(std::uint64_t session, std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  return leases_.erase({session, address}) != 0;
}

void ControlLink::look_again() {
  { std::lock_guard lock(mutex_); }  // whoever is about to sleep has looked already, and sleeps by now
  arrived_.notify_all();
}

bool ControlLink::settle(unsigned timeout_ms, const IsGone& is_gone) {
  std::unique_lock lock(mutex_);
  ExecutorPacket packet;
  packet.header.type = ExecutorMessage::settle;
  const std::uint64_t ticket = packet.object = ++settles_asked_;
  send(packet);  // under the lock, so that tickets arrive in order
  return arrived_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return settles_answered_ >= ticket || is_gone(); });
}

void ControlLink::forget_session(std::uint64_t session) {
  std::lock_guard lock(mutex_);
  segments_.erase(segments_.lower_bound({session, 0}), segments_.lower_bound({session + 1, 0}));
  pieces_.erase(pieces_.lower_bound({session, 0}), pieces_.lower_bound({session + 1, 0}));
  leases_.erase(leases_.lower_bound({session, 0}), leases_.lower_bound({session + 1, 0}));
}

}  // namespace mpsshim::broker
