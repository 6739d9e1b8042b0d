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

void ControlLink::send(const OutgoingMessage& message) {
  std::lock_guard lock(send_mutex_);
  proto::SocketStatus status = socket_.send(message.bytes(), message.fds());
  // Of this user's processes one has too many descriptors in sockets. What is to be sent is somebody's memory: it has to arrive.
  while (status == proto::SocketStatus::failed && proto::is_shortage(errno)) {
    std::this_thread::sleep_for(kSendAgain);
    status = socket_.send(message.bytes(), message.fds());
  }
  if (status != proto::SocketStatus::ok) log_error("The control process could not be told: {}", name_in(message.bytes()));
}

// False: it is over.
bool ControlLink::receive(ReceivedMessage& received) {
  for (;;) {
    std::array<std::byte, kMaxExecutorPacketBytes> packet;
    std::size_t bytes = 0;
    proto::ReceivedFds fds;
    const proto::SocketStatus status = socket_.receive(packet, bytes, fds);
    if (status == proto::SocketStatus::closed || status == proto::SocketStatus::failed) return false;
    if (status != proto::SocketStatus::ok) {
      log_error("A message of {} bytes from the control process is not understood and was left out", bytes);
      continue;
    }
    const auto arrived = std::span<const std::byte>(packet).first(bytes);
    const proto::Misfit misfit = received.assign(arrived, fds, proto::MessageDirection::to_executor);
    if (misfit == proto::Misfit::fits) return !received.is<message::Quit>();
    log_error("{} of {} bytes from the control process {}, and was left out", name_in(arrived), bytes, proto::words_for(misfit));
  }
}

ControlLink::InOrder ControlLink::note(LogKind kind, std::uint64_t object, std::uint64_t copy, std::uint64_t session, std::uint32_t flags) {
  InOrder in_order(order_mutex_);
  send(message::ModuleNote{.session = session, .object = object, .copy = copy, .kind = kind, .flags = flags});
  return in_order;
}

void ControlLink::run(const Handler& handler) {
  receiver_ = std::this_thread::get_id();
  for (;;) {
    ReceivedMessage next;
    if (!deferred_.empty()) {
      next = std::move(deferred_.front());
      deferred_.pop_front();
    } else if (is_over_ || !receive(next)) {
      return;
    }
    file(next, handler);
  }
}

// By the thread that receives. What has to be handled in its order waits for run().
void ControlLink::receive_until(const std::function<bool()>& is_enough) {
  while (!is_over_ && !is_enough()) {
    ReceivedMessage received;
    is_over_ = !receive(received);
    if (is_over_) return;
    file(received, [&](ReceivedMessage& other) { deferred_.push_back(std::move(other)); });
  }
}

bool ControlLink::await(ExecutorMessage type) {
  for (;;) {
    ReceivedMessage received;
    if (!receive(received)) return false;
    if (received.id() == type) return true;
    log_error("{} came where another message is awaited, and was left out", received.name());
  }
}

void ControlLink::file(ReceivedMessage& received, const Handler& handler) {
  if (received.is<message::ImageGive>()) return keep(received.take<message::ImageGive>());
  if (received.is<message::SegmentAdd>()) return keep(received.take<message::SegmentAdd>());
  if (received.is<message::PieceAdd>()) return keep(received.take<message::PieceAdd>());
  if (received.is<message::LeaseAdd>()) return keep(received.take<message::LeaseAdd>());
  if (received.is<message::MemoryGrant>()) return keep(received.take<message::MemoryGrant>());
  if (received.is<message::Settled>()) return keep(received.take<message::Settled>());
  handler(received);
}

void ControlLink::keep(Received<message::ImageGive> given) {
  const std::lock_guard lock(mutex_);
  const auto asked = images_.find(given.message.question);
  if (asked == images_.end()) return;  // whoever asked has given up
  FetchedImage& fetched = asked->second.emplace();
  fetched.status = static_cast<CUresult>(given.message.status);
  fetched.log = given.message.text;
  fetched.image = std::move(given.fds.image);
  fetched.prepared = std::move(given.fds.prepared);
  if (fetched.status == CUDA_SUCCESS && !fetched.image.valid()) fetched.status = CUDA_ERROR_OUT_OF_MEMORY;
  arrived_.notify_all();
}

void ControlLink::keep(Received<message::SegmentAdd> added) {
  const std::lock_guard lock(mutex_);
  const message::SegmentAdd& segment = added.message;
  segments_[{segment.session, segment.segment}] = {segment.purpose, segment.address, segment.size_bytes, segment.is_peers != 0,
                                                     std::move(added.fds.file)};
  arrived_.notify_all();
}

void ControlLink::keep(Received<message::PieceAdd> added) {
  const std::lock_guard lock(mutex_);
  const message::PieceAdd& piece = added.message;
  pieces_[{piece.session, piece.memory}] = {piece.size_bytes, piece.handle_type, piece.piece, std::move(added.fds.handle)};
  arrived_.notify_all();
}

void ControlLink::keep(const Received<message::LeaseAdd>& added) {
  const std::lock_guard lock(mutex_);
  leases_[{added.message.session, added.message.lease.address}] = {added.message.lease, added.message.is_peers != 0};
  arrived_.notify_all();
}

void ControlLink::keep(const Received<message::MemoryGrant>& answer) {
  const std::lock_guard lock(mutex_);
  const message::MemoryGrant& grant = answer.message;
  const auto asked = memory_answers_.find(grant.question);
  if (asked == memory_answers_.end()) return;  // whoever asked has given up, and given it back
  asked->second = {static_cast<CUresult>(grant.status), grant.question, grant.left_bytes};
  arrived_.notify_all();
}

void ControlLink::keep(const Received<message::Settled>& answer) {
  const std::lock_guard lock(mutex_);
  settles_answered_ = answer.message.ticket;
  arrived_.notify_all();
}

ControlLink::FetchedImage ControlLink::fetch_image(std::uint64_t session, std::uint64_t image, const ImageTarget& target, unsigned timeout_ms) {
  const std::uint32_t flags =
      (target.has_objects ? kImageHasObjects : 0) | (target.runs_texts ? kImageForTexts : 0) | (target.opens_assertions ? kImageOpensAssertions : 0);
  return ask(message::ImageWant{.session = session, .image = image, .compute = target.compute, .flags = flags}, {}, timeout_ms);
}

ControlLink::FetchedImage ControlLink::check_input(std::uint64_t session, const proto::FileDescriptor& input, CUjitInputType type,
                                                   unsigned timeout_ms) {
  return ask(message::ImageCheck{.session = session, .input_type = static_cast<std::uint32_t>(type)}, {.input = input.get()}, timeout_ms);
}

ControlLink::FetchedImage ControlLink::link(std::uint64_t session, std::uint64_t image, std::uint32_t flags, const proto::FileDescriptor& request,
                                            unsigned timeout_ms) {
  const auto asker_pid = static_cast<std::uint32_t>(getpid());
  return ask(message::LinkWant{.session = session, .image = image, .flags = flags, .asker_pid = asker_pid}, {.request = request.get()}, timeout_ms);
}

// The control process answers in image_service.cpp: give_image, check_input, have_linked. Its answer comes to file().
template <class Question>
ControlLink::FetchedImage ControlLink::ask(Question question, LentFds<Question> fds, unsigned timeout_ms) {
  std::unique_lock lock(mutex_);
  question.question = ++images_asked_;
  const auto asked = images_.try_emplace(question.question).first;
  lock.unlock();
  send({question, fds});
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
  message::MemoryWant want{.session = session, .size_bytes = size_bytes};
  std::unique_lock lock(mutex_);
  want.question = ++memory_asked_;
  const auto asked = memory_answers_.try_emplace(want.question).first;
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
  give_memory_back(session, want.question);
  return {};
}

void ControlLink::give_memory_back(std::uint64_t session, std::uint64_t number) {
  send(message::MemoryBack{.session = session, .question = number});
}

template <class Kind>
CUresult ControlLink::take(std::map<Announced, Kind> ControlLink::*announced, Announced which, const IsGone& is_gone, Kind& taken) {
  const auto is_here = [&] {
    const std::lock_guard lock(mutex_);
    auto node = (this->*announced).extract(which);
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
  return take(&ControlLink::segments_, {session, segment}, is_gone, taken);
}

CUresult ControlLink::take_piece(std::uint64_t session, std::uint64_t memory, const IsGone& is_gone, ReceivedPiece& taken) {
  return take(&ControlLink::pieces_, {session, memory}, is_gone, taken);
}

CUresult ControlLink::take_lease(std::uint64_t session, std::uint64_t address, const IsGone& is_gone, ReceivedLease& taken) {
  return take(&ControlLink::leases_, {session, address}, is_gone, taken);
}

bool ControlLink::forget_lease(std::uint64_t session, std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  return leases_.erase({session, address}) != 0;
}

void ControlLink::look_again() {
  { std::lock_guard lock(mutex_); }  // whoever is about to sleep has looked already, and sleeps by now
  arrived_.notify_all();
}

// Sent without mutex_: a socket that is full would hold up workers at it.
bool ControlLink::settle(unsigned timeout_ms, const IsGone& is_gone) {
  std::uint64_t ticket = 0;
  {
    const std::lock_guard in_order(settle_mutex_);
    ticket = ++settles_asked_;
    send(message::Settle{.ticket = ticket});
  }
  std::unique_lock lock(mutex_);
  return arrived_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&]() REQUIRES(mutex_) { return settles_answered_ >= ticket || is_gone(); });
}

void ControlLink::forget_session(std::uint64_t session) {
  std::lock_guard lock(mutex_);
  segments_.erase(segments_.lower_bound({session, 0}), segments_.lower_bound({session + 1, 0}));
  pieces_.erase(pieces_.lower_bound({session, 0}), pieces_.lower_bound({session + 1, 0}));
  leases_.erase(leases_.lower_bound({session, 0}), leases_.lower_bound({session + 1, 0}));
}

}  // namespace mpsshim::broker
