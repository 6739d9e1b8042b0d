// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/hostile/programs/attacks.hpp"

namespace mpsshim::test {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kChunkBytes = 2u << 20;
constexpr std::uint64_t kSegmentBytes = 64u << 10;
constexpr std::size_t kLastRecord = 0x801c;

struct Part {
  std::byte* data;
  std::size_t size;
};

void scribble_over(Hostile& hostile, Part part) {
  for (int i = 0; i < 64; ++i) {
    const std::size_t at = hostile.random() % (part.size - 8) / 4 * 4;
    // Small numbers as well: they are more often believed.
    const std::uint64_t value = hostile.random() % 2 == 0 ? hostile.random() : hostile.random() % 5;
    std::memcpy(part.data + at, &value, sizeof value);
  }
}

std::vector<Part> parts_of(RawSession& session, const std::string& what) {
  const bool all = what == "all";
  std::vector<Part> parts;
  if (all || what == "header") parts.push_back({session.control.data(), proto::kPageBytes});
  if (all || what == "waiters") parts.push_back({session.control.data() + proto::kFenceWaiterOffset, proto::kPageBytes});
  if (all || what == "replies") parts.push_back({session.control.data() + proto::kReplyOffset, proto::kReplySlots * proto::kReplySlotBytes});
  if (all || what == "ring") parts.push_back({session.ring.data(), proto::kRingBytes});
  if (all || what == "fences") parts.push_back({session.fences.data(), proto::kFenceSegmentBytes});
  if (parts.empty()) throw Failure("there are no pages called " + what);
  return parts;
}

// Something for the executor to do meanwhile; whether it is still served does not matter.
void post_some(RawSession& session) {
  if (session.producer.reserve(4096) == nullptr) return;
  (void)session.post(proto::FenceRecord{7, 0});
  if (session.producer.reserve(4096) == nullptr) return;
  (void)session.post(proto::MemoryInfoRecord{}, proto::kNullStream, {}, 3);
  session.ring_doorbells();
}

bool is_sealed(const proto::FileDescriptor& file) {
  const bool shrinks = ftruncate(file.get(), 0) == 0;
  const bool is_refused = errno == EPERM;
  const bool grows = ftruncate(file.get(), 1u << 30) == 0;
  return !shrinks && is_refused && !grows;
}

}  // namespace

void Hostile::renew_if_ended() {
  if (session && session->is_active()) return;
  session.reset();
  session = std::make_unique<RawSession>();
}

std::string work(Hostile& hostile) {
  RawSession& session = hostile.own();
  const RawReply made = session.call(proto::ChunkCreateRecord{kChunkBytes});
  if (made.status != 0) throw Failure("ChunkCreate: " + std::to_string(made.status));
  const auto chunk = made.body<proto::ChunkCreateReply>();
  const std::uint64_t segment = session.make_segment(proto::SegmentPurpose::staging, 0, kSegmentBytes);
  const RawReply mapped = session.call(proto::SegmentMapRecord{segment, 0, 0});
  if (mapped.status != 0) throw Failure("SegmentMap: " + std::to_string(mapped.status));
  session.post(proto::FillRecord{chunk.address, 0, kSegmentBytes, 1, 0x5a, 1});
  proto::CopyRecord copy{};
  copy.source = chunk.address;
  copy.size_bytes = kSegmentBytes;
  copy.destination_space = proto::MemorySpace::staging;
  session.post(copy);
  session.post(proto::FenceRecord{1, 0});
  session.await_fence(1);
  const proto::Mapping memory = proto::Mapping::map(session.segment_files.back(), 0, kSegmentBytes, proto::Access::read_only);
  if (!memory || !std::all_of(memory.data(), memory.data() + kSegmentBytes, [](std::byte byte) { return byte == std::byte{0x5a}; })) {
    throw Failure("the copy is not what was filled");
  }
  return "ok";
}

std::string scribble(Hostile& hostile, const std::string& what, int duration_ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(duration_ms);
  unsigned sessions = 1;
  hostile.own();
  while (Clock::now() < end) {
    RawSession& session = *hostile.session;
    for (const Part part : parts_of(session, what)) scribble_over(hostile, part);
    post_some(session);
    // Whether the session has ended is the broker's word alone; here the page that says so is scribbled over, so a new one is made at times.
    if (hostile.random() % 512 != 0) continue;
    hostile.session.reset();
    hostile.own();
    ++sessions;
  }
  return "ok " + std::to_string(sessions);
}

std::string forge(Hostile& hostile, int duration_ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(duration_ms);
  unsigned rounds = 0;
  for (; Clock::now() < end; ++rounds) {
    RawSession& session = hostile.own();
    proto::ChannelHeader& header = session.header();
    auto* waiters = reinterpret_cast<proto::FenceWaiter*>(session.control.data() + proto::kFenceWaiterOffset);
    proto::FenceWaiter& waiter = waiters[hostile.random() % proto::kFenceWaiters];
    switch (hostile.random() % 12) {
      case 0: header.session_state.store(static_cast<std::uint32_t>(hostile.random() % 4)); break;
      case 1: header.session_error.store(static_cast<std::uint32_t>(hostile.random() % 1000)); break;
      case 2: header.consumer_idle.store(static_cast<std::uint32_t>(hostile.random() % 2)); break;
      case 3: header.producer_waiting.store(1); break;
      case 4: header.head.store(hostile.random()); break;
      case 5: header.epoch = hostile.random() % 8; break;
      case 6: header.magic = 0; break;
      case 7: header.async_error.store(static_cast<std::uint32_t>(hostile.random() % 1000)); break;
      case 8:
        session.fence(static_cast<std::uint32_t>(hostile.random() % proto::kFenceWords)).value.store(static_cast<std::uint32_t>(hostile.random()));
        break;
      default:
        // Armed for ever, or for a word that does not exist.
        waiter.fence = static_cast<std::uint32_t>(hostile.random() % 3 == 0 ? hostile.random() : hostile.random() % proto::kFenceWords);
        waiter.target = static_cast<std::uint32_t>(hostile.random());
        waiter.state.store(proto::FenceWaiter::armed);
    }
    post_some(session);
    if (hostile.random() % 2048 == 0) {
      header.tail.store(hostile.random() % 2 == 0 ? hostile.random() : header.tail.load() + 8);
      session.ring_doorbells();
      hostile.session.reset();
    }
  }
  return "ok " + std::to_string(rounds);
}

std::string punch(Hostile& hostile) {
  RawSession& session = hostile.own();
  (void)work(hostile);
  session.make_segment(proto::SegmentPurpose::pinned, session.attached.pinned_lease.address, kSegmentBytes);
  std::vector<const proto::FileDescriptor*> files{&session.channel_file, &session.fence_file};
  for (const proto::FileDescriptor& file : session.segment_files) files.push_back(&file);
  for (const proto::FileDescriptor* file : files) {
    if (!is_sealed(*file)) throw Failure("a file that the broker maps can be made shorter or longer");
  }
  int holes = 0;
  for (int turn = 0; turn < 200 && session.is_active(); ++turn) {
    for (const proto::FileDescriptor* file : files) {
      const std::size_t size = file == files.front() ? proto::kChannelBytes : kSegmentBytes;
      holes += fallocate(file->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size)) == 0 ? 1 : 0;
    }
    session.ring_doorbells();
    post_some(session);
    usleep(1000);
  }
  return "ok " + std::to_string(holes);
}

std::string jam_doorbells(Hostile& hostile) {
  constexpr std::uint64_t kFull = ~0ull - 1;  // one more has to wait until somebody reads
  RawSession& session = hostile.own();
  (void)work(hostile);
  for (const proto::FileDescriptor* bell : {&session.ring_doorbell, &session.completion_doorbell}) {
    if (fcntl(bell->get(), F_SETFL, O_NONBLOCK) != 0) throw Failure("a doorbell's flags cannot be set");
    std::uint64_t rings = 0;
    (void)!read(bell->get(), &rings, sizeof rings);
  }
  auto* waiter = reinterpret_cast<proto::FenceWaiter*>(session.control.data() + proto::kFenceWaiterOffset);
  waiter->fence = 0;
  waiter->target = session.fence(0).value.load() + 1;  // which nothing is under way for
  waiter->state.store(proto::FenceWaiter::armed);
  for (const proto::FileDescriptor* bell : {&session.ring_doorbell, &session.completion_doorbell}) {
    if (fcntl(bell->get(), F_SETFL, 0) != 0 || eventfd_write(bell->get(), kFull) != 0) throw Failure("a doorbell cannot be filled");
  }
  usleep(200'000);  // by then the wait is a long one
  return "ok";
}

std::string unmap(Hostile& hostile) {
  RawSession& session = hostile.own();
  (void)work(hostile);
  for (int i = 0; i < 100; ++i) post_some(session);
  session.control = {};
  session.ring = {};
  session.fences = {};
  session.channel_file.reset();
  session.fence_file.reset();
  session.segment_files.clear();
  return "ok";
}

std::string random_records(Hostile& hostile, int duration_ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(duration_ms);
  unsigned sessions = 0, records = 0;
  while (Clock::now() < end) {
    hostile.renew_if_ended();
    ++sessions;
    RawSession& session = *hostile.session;
    bool goes_on = true;
    for (int i = 0; goes_on && i < 2000; ++i, ++records) {
      std::byte body[88], trailing[64];
      for (std::byte& byte : body) byte = static_cast<std::byte>(hostile.random() % 4 != 0 ? 0 : hostile.random());
      for (std::byte& byte : trailing) byte = static_cast<std::byte>(hostile.random());
      const auto id = static_cast<std::uint16_t>(0x8001 + hostile.random() % (kLastRecord + 1 - 0x8001));
      const auto slot = static_cast<std::uint16_t>(hostile.random() % 2 == 0 ? proto::kNoReplySlot : hostile.random() % 33);
      const auto stream =
          proto::StreamId::make(static_cast<std::uint32_t>(hostile.random() % 4), static_cast<std::uint32_t>(1 + hostile.random() % 2));
      const std::span<const std::byte> all(body);
      goes_on =
          session.post_raw(id, stream, all.first(hostile.random() % (sizeof body / 8 + 1) * 8),
                           std::span<const std::byte>(trailing).first(hostile.random() % 4 == 0 ? hostile.random() % sizeof trailing : 0), slot);
    }
    if (goes_on) hostile.session.reset();
  }
  return "ok " + std::to_string(sessions) + " " + std::to_string(records);
}

}  // namespace mpsshim::test
