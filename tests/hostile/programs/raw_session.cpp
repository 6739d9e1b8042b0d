// SPDX-License-Identifier: Apache-2.0
#include "tests/hostile/programs/raw_session.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mpsshim::test {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kTooManySessions = 808;  // CUDA_ERROR_MPS_MAX_CLIENTS_REACHED

void require_status(const proto::MessageHeader& header, const char* what) {
  if (header.status != 0) throw Failure(std::string(what) + " is answered with CUDA error " + std::to_string(header.status));
}

}  // namespace

RawConnection::RawConnection() {
  const char* directory = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  if (directory == nullptr) throw Failure("CUDA_MPS_PIPE_DIRECTORY is not set");
  socket = proto::Socket::connect_to(std::string(directory) + "/" + proto::kClientSocketName);
  if (!socket.valid()) throw Failure(std::string("no broker can be reached: ") + std::strerror(errno));
}

proto::Welcome RawConnection::hello() {
  const proto::FileDescriptor self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  const int fd = self.get();
  return ask<proto::Welcome>(proto::Hello{}, {&fd, 1});
}

void RawConnection::receive(std::span<std::byte> answer) {
  std::size_t bytes = 0;
  if (!socket.wait_readable(kAnswerLimitMs)) throw Failure("the broker does not answer");
  const proto::SocketStatus status = socket.receive(answer, bytes, fds);
  if (status == proto::SocketStatus::closed || status == proto::SocketStatus::failed) throw Failure("the broker has hung up");
  if (status != proto::SocketStatus::ok || bytes != answer.size()) throw Failure("an answer of " + std::to_string(bytes) + " bytes");
}

RawSession::RawSession(bool insists, std::uint32_t device) {
  require_status(connection.hello().header, "Hello");
  const auto limit = Clock::now() + std::chrono::milliseconds(kAnswerLimitMs);
  do {
    proto::Attach request;
    request.device = device;
    attached = connection.ask<proto::Attached>(request);
  } while (insists && attached.header.status == kTooManySessions && Clock::now() < limit && usleep(1'000) == 0);
  require_status(attached.header, "Attach");
  if (connection.fds.count != 4) throw Failure("Attached has " + std::to_string(connection.fds.count) + " descriptors");
  auto fds = proto::take_fds<proto::Attached>(connection.fds);
  channel_file = std::move(fds.channel);
  fence_file = std::move(fds.fences);
  ring_doorbell = std::move(fds.ring_doorbell);
  completion_doorbell = std::move(fds.completion_doorbell);
  control = proto::Mapping::map(channel_file, 0, proto::kRingOffset, proto::Access::read_write);
  ring = proto::Mapping::map_twice(channel_file, proto::kRingOffset, proto::kRingBytes, proto::Access::read_write);
  fences = proto::Mapping::map(fence_file, 0, proto::kFenceSegmentBytes, proto::Access::read_write);
  if (!control || !ring || !fences) throw Failure("the channel cannot be mapped");
  producer = proto::RingProducer(&header(), ring.data());
}

void RawSession::ring_doorbells() const {
  eventfd_write(ring_doorbell.get(), 1);
  eventfd_write(completion_doorbell.get(), 1);
}

bool RawSession::post_raw(std::uint16_t id, proto::StreamId stream, std::span<const std::byte> body, std::span<const std::byte> trailing,
                          std::uint16_t slot) {
  const std::uint32_t size = proto::record_size(body.size(), trailing.size());
  const auto limit = Clock::now() + std::chrono::milliseconds(kAnswerLimitMs);
  std::byte* at = nullptr;
  while ((at = producer.reserve(size)) == nullptr) {
    if (!is_active()) return false;
    if (Clock::now() > limit) throw Failure("the ring stays full");
    producer.wait_for_room(20'000);
  }
  std::memset(at, 0, size);
  const proto::RecordHeader head{size, id, slot, producer.next_sequence(), static_cast<std::uint32_t>(trailing.size()), stream};
  std::memcpy(at, &head, sizeof head);
  if (!body.empty()) std::memcpy(at + sizeof head, body.data(), body.size());
  const std::size_t padded = (trailing.size() + proto::kRecordAlignment - 1) / proto::kRecordAlignment * proto::kRecordAlignment;
  if (!trailing.empty()) std::memcpy(at + size - padded, trailing.data(), trailing.size());
  if (producer.publish(size)) eventfd_write(ring_doorbell.get(), 1);
  return is_active();
}

void RawSession::arm(std::uint16_t slot) { slot_of(slot).state.store(proto::ReplySlot::pending); }

RawReply RawSession::wait(std::uint16_t slot) {
  const auto limit = Clock::now() + std::chrono::milliseconds(kAnswerLimitMs);
  while (slot_of(slot).state.load() != proto::ReplySlot::done) {
    if (!is_active()) throw Failure("the session has ended");
    if (Clock::now() > limit) throw Failure("a call is not answered");
    usleep(50);
  }
  RawReply reply;
  reply.status = slot_of(slot).status;
  const auto* payload = reinterpret_cast<const std::byte*>(&slot_of(slot)) + sizeof(proto::ReplySlot);
  reply.payload.assign(payload, payload + std::min<std::size_t>(slot_of(slot).size_bytes, proto::kMaxReplyBytes));
  return reply;
}

void RawSession::await_fence(std::uint32_t value, std::uint32_t index) {
  const auto limit = Clock::now() + std::chrono::milliseconds(kAnswerLimitMs);
  while (!proto::fence_reached(fence(index).value.load(), value)) {
    if (!is_active()) throw Failure("the session has ended");
    if (Clock::now() > limit) throw Failure("a fence is not reached");
    usleep(50);
  }
}

std::uint64_t RawSession::make_segment(proto::SegmentPurpose purpose, std::uint64_t address, std::uint64_t size_bytes) {
  proto::SegmentCreate request;
  request.purpose = purpose;
  request.address = address;
  request.size_bytes = size_bytes;
  const auto created = connection.ask<proto::SegmentCreated>(request);
  require_status(created.header, "SegmentCreate");
  segment_files.push_back(proto::take_fds<proto::SegmentCreated>(connection.fds).file);
  return created.segment;
}

std::uint64_t RawSession::make_image(const std::string& content) {
  proto::ImageOpen open;
  open.size_bytes = content.size();
  const auto opened = connection.ask<proto::ImageOpened>(open);
  require_status(opened.header, "ImageOpen");
  const proto::FileDescriptor file = proto::take_fds<proto::ImageOpened>(connection.fds).file;
  if (pwrite(file.get(), content.data(), content.size(), 0) != static_cast<ssize_t>(content.size())) throw Failure("an image cannot be written");
  proto::ImageSeal seal;
  seal.image = opened.image;
  const auto done = connection.ask<proto::Done>(seal);
  require_status(done.header, "ImageSeal");
  return done.image;
}

}  // namespace mpsshim::test
