// SPDX-License-Identifier: Apache-2.0
#include "tests/hostile/programs/attacks.hpp"

#include <unistd.h>

namespace mpsshim::test {

namespace {

constexpr std::uint64_t kChunkBytes = 2u << 20;
constexpr std::uint32_t kInvalidDevice = 101;

std::uint32_t ask_for_range(RawSession& session, std::uint64_t address, proto::Lease& lease) {
  proto::PeerLease request;
  request.address = address;
  const auto answer = session.connection.ask<proto::PeerLeased>(request);
  lease = answer.lease;
  return answer.header.status;
}

void require_status(const RawReply& reply, bool is_right, const char* what) {
  if ((reply.status == 0) != is_right) throw Failure(std::string(what) + ": " + std::to_string(reply.status));
}

RawReply map(RawSession& session, std::uint64_t address, proto::MemoryId memory, std::uint64_t size_bytes = kChunkBytes) {
  return session.call(proto::MappingCreateRecord{address, size_bytes, memory, true, 0});
}

// Whether a fill of one byte is taken.
bool may_fill(RawSession& session, std::uint64_t address) {
  session.post(proto::FillRecord{address, 0, 1, 1, 0x5a, 1});
  const std::uint32_t value = session.fence(0).value.load() + 1;
  session.post(proto::FenceRecord{value, 0});
  session.await_fence(value);
  return session.header().async_error.exchange(0) == 0;
}

// Memory that the owner has, as a piece of the other's.
void open(RawSession& owner, std::uint64_t chunk, RawSession& other, proto::MemoryId id) {
  proto::MemoryShare share;
  share.object = chunk;
  const auto shared = owner.connection.ask<proto::MemoryShared>(share);
  if (other.connection.ask<proto::MemoryShared>(share).header.status == 0) throw Failure("another session's chunk gets a name");
  proto::MemoryOpen request;
  request.memory = id.value;
  request.name = shared.name;
  request.name.word[0] ^= 1;
  if (other.connection.ask<proto::MemoryOpened>(request).header.status == 0) throw Failure("memory is opened by a wrong name");
  request.name = shared.name;
  if (other.connection.ask<proto::MemoryOpened>(request).header.status != 0) throw Failure("memory is not opened by its name");
  require_status(other.call(proto::MemoryAdoptRecord{id}), true, "its adoption");
}

// Every range of the window: one is given, the owner's.
void look_for_ranges(RawSession& session, const proto::Lease& owners) {
  constexpr std::uint64_t kBegin = 0x2000'0000'0000, kEnd = 0x5000'0000'0000, kStep = 32ull << 30;
  for (std::uint64_t address = kBegin + (4u << 20); address < kEnd; address += kStep) {
    proto::Lease lease;
    const bool is_given = ask_for_range(session, address, lease) == 0;
    const bool is_owners = address - owners.address < owners.size_bytes;
    if (is_given != is_owners) throw Failure("a range is given, or refused, wrongly: " + std::to_string(address));
  }
}

void map_in_range(RawSession& other, const proto::Lease& owners, std::uint64_t chunk, proto::MemoryId memory) {
  require_status(map(other, owners.address + owners.size_bytes - kChunkBytes / 2, memory), false, "a mapping over the range's end");
  require_status(map(other, owners.address - kChunkBytes, memory), false, "a mapping before the range");
  require_status(map(other, chunk + 1, memory), false, "a mapping at an odd address");
  require_status(map(other, chunk, proto::MemoryId::make(99, 1)), false, "a mapping of what is no memory");
  if (may_fill(other, chunk)) throw Failure("memory is reached that is not mapped");
  require_status(map(other, chunk, memory), true, "the mapping");
  require_status(map(other, chunk, memory), false, "a mapping where one is");
  if (!may_fill(other, chunk + kChunkBytes - 1) || may_fill(other, chunk + kChunkBytes)) throw Failure("what is mapped is not what is reached");
  // The range is not for chunks, and stays as it is.
  for (int i = 0; i < 8; ++i) {
    const auto made = other.call(proto::ChunkCreateRecord{kChunkBytes}).body<proto::ChunkCreateReply>();
    if (made.address - owners.address < owners.size_bytes) throw Failure("a chunk lies in another session's range");
  }
  other.post(proto::RangeFreeRecord{owners.address, owners.size_bytes});
  if (!may_fill(other, chunk)) other.header().async_error.exchange(0);  // the refusal of the range's end
  if (!may_fill(other, chunk)) throw Failure("the end of a range that is in use is not refused");
}

std::uint32_t ask_for_segment(RawSession& session, std::uint64_t address, std::uint64_t& segment) {
  proto::PeerSegment request;
  request.address = address;
  const auto answer = session.connection.ask<proto::SegmentCreated>(request);
  segment = answer.segment;
  return answer.header.status;
}

// Pinned memory of the owner's: where it begins, for its process's other session, once that has mapped it.
void use_pinned(RawSession& owner, RawSession& other) {
  constexpr std::uint64_t kBytes = 2 * proto::kPageBytes;
  proto::SegmentCreate create;
  create.purpose = proto::SegmentPurpose::pinned;
  create.size_bytes = kBytes;
  const std::uint64_t address = create.address = owner.attached.pinned_lease.address;
  const auto made = owner.connection.ask<proto::SegmentCreated>(create);
  require_status(owner.call(proto::SegmentMapRecord{made.segment, 0, 0}), true, "the owner's segment");
  if (!may_fill(owner, address)) throw Failure("the owner does not reach its pinned memory");
  std::uint64_t segment = 0;
  constexpr std::uint64_t kBegin = 0x2000'0000'0000, kEnd = 0x5000'0000'0000, kStep = 32ull << 30;
  for (std::uint64_t place = kBegin; place < kEnd; place += kStep) {
    if (place != address && ask_for_segment(other, place, segment) == 0) throw Failure("pinned memory is given that is nobody's, or a stranger's");
  }
  for (const std::uint64_t place : {address + 1, address + proto::kPageBytes, address - proto::kPageBytes, other.attached.pinned_lease.address}) {
    if (ask_for_segment(other, place, segment) == 0) throw Failure("pinned memory is given that does not begin there");
  }
  if (ask_for_segment(owner, address, segment) == 0) throw Failure("a session is given its own pinned memory as another's");
  if (may_fill(other, address)) throw Failure("pinned memory is reached that was not asked for");
  if (ask_for_segment(other, address, segment) != 0) throw Failure("the process's own pinned memory is not given");
  if (may_fill(other, address)) throw Failure("pinned memory is reached before it is mapped");
  require_status(other.call(proto::SegmentMapRecord{segment, 0, 0}), true, "the owner's pinned memory");
  if (!may_fill(other, address + kBytes - 1) || may_fill(other, address + kBytes)) throw Failure("what is mapped is not what is reached");
  other.post(proto::SegmentUnmapRecord{segment});
  if (may_fill(other, address) || !may_fill(owner, address))
    throw Failure("pinned memory is reached that was unmapped, or is not its owner's any more");
  // Left mapped when both are killed.
  for (int i = 0; ask_for_segment(other, address, segment) != 0; ++i, usleep(1'000)) {
    if (i == 2'000) throw Failure("the pinned memory is not given again");
  }
  require_status(other.call(proto::SegmentMapRecord{segment, 0, 0}), true, "the owner's pinned memory again");
}

// The range, until its end has got through to everybody.
void map_again(RawSession& other, const proto::Lease& owners, std::uint64_t chunk, proto::MemoryId memory) {
  for (int i = 0; i < 2'000; ++i, usleep(1'000)) {
    proto::Lease again;
    if (ask_for_range(other, chunk, again) != 0) throw Failure("the range is not given again");
    if (other.call(proto::LeaseUseRecord{owners.address}).status == 0 && map(other, chunk, memory).status == 0) return;
  }
  throw Failure("the range cannot be used again");
}

// The end of the range, and of its lease, behind the end of one mapping of two.
void end_with_mappings(RawSession& owner, RawSession& other, const proto::Lease& owners, std::uint64_t chunk) {
  const proto::MemoryId second = proto::MemoryId::make(2, 1);
  const std::uint64_t behind = chunk + (16u << 20);
  open(owner, chunk, other, second);
  require_status(map(other, behind, second), true, "a second mapping");
  for (int i = 0; i < 2; ++i) {
    if (i == 0) other.post(proto::MappingEndRecord{chunk});
    other.post(proto::RangeFreeRecord{owners.address, owners.size_bytes});
    other.post(proto::LeaseEndRecord{owners.address});
    (void)may_fill(other, behind);  // or an error that is about the range
    if (!may_fill(other, behind)) throw Failure("a range ends in which something is mapped");
  }
  other.post(proto::MappingEndRecord{behind});
  other.post(proto::MemoryReleaseRecord{second});
  other.post(proto::LeaseEndRecord{owners.address});
}

}  // namespace

std::string peers(Hostile& hostile, std::uint64_t address) {
  hostile.more_sessions.clear();
  {
    RawConnection connection;
    (void)connection.hello();
    proto::Attach request;
    request.device = 1;
    if (connection.ask<proto::Attached>(request).header.status == kInvalidDevice) return "ok one device";
  }
  hostile.more_sessions.push_back(std::make_unique<RawSession>(true, 0));
  hostile.more_sessions.push_back(std::make_unique<RawSession>(true, 1));
  RawSession& owner = *hostile.more_sessions[0];
  RawSession& other = *hostile.more_sessions[1];
  const proto::Lease owners = owner.attached.device_lease;
  const std::uint64_t chunk = owner.call(proto::ChunkCreateRecord{kChunkBytes}).body<proto::ChunkCreateReply>().address;
  const proto::MemoryId memory = proto::MemoryId::make(1, 1);
  open(owner, chunk, other, memory);

  use_pinned(owner, other);
  require_status(map(other, chunk, memory), false, "a mapping in a range that it was not given");
  require_status(other.call(proto::LeaseUseRecord{owners.address}), false, "the use of a range that it was not given");
  look_for_ranges(other, owners);
  require_status(other.call(proto::LeaseUseRecord{owners.address}), true, "the use of the range that it was given");
  map_in_range(other, owners, chunk, memory);
  if (address != 0 && (may_fill(other, address) || map(other, address, memory).status == 0)) throw Failure("the bystander's memory is reached");
  // Ended and used, in the wrong order.
  other.post(proto::MappingEndRecord{chunk});
  if (may_fill(other, chunk)) throw Failure("memory is reached that was unmapped");
  other.post(proto::LeaseEndRecord{owners.address});
  require_status(map(other, chunk, memory), false, "a mapping in a range that has ended");
  other.post(proto::LeaseEndRecord{owners.address});
  map_again(other, owners, chunk, memory);
  // The range ended as if it were one of its own making, then with its lease: once.
  other.post(proto::MappingEndRecord{chunk});
  other.post(proto::RangeFreeRecord{owners.address, owners.size_bytes});
  if (may_fill(other, chunk)) throw Failure("memory is reached in a range that has ended");
  other.post(proto::LeaseEndRecord{owners.address});
  if (may_fill(other, chunk)) throw Failure("memory is reached in a lease that has ended");
  map_again(other, owners, chunk, memory);
  end_with_mappings(owner, other, owners, chunk);
  map_again(other, owners, chunk, memory);
  // What the owner has given up is the other's as long as that has it.
  owner.post(proto::ChunkReleaseRecord{chunk});
  if (may_fill(owner, chunk) || !may_fill(other, chunk)) throw Failure("memory does not outlive its owner's chunk");
  return "ok";
}

}  // namespace mpsshim::test
