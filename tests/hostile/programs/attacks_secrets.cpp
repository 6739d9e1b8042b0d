// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <unistd.h>

#include "tests/hostile/programs/attacks.hpp"

namespace mpsshim::test {

namespace {

constexpr std::uint64_t kStagingBytes = 4u << 20;
constexpr std::uint32_t kInvalidValue = 1;
using Space = proto::MemorySpace;

std::size_t bytes_set(const std::byte* data, std::size_t size) {
  return size - static_cast<std::size_t>(std::count(data, data + size, std::byte{0}));
}

// A staging segment of the session's, mapped here and there.
proto::Mapping make_staging(RawSession& session) {
  const std::uint64_t segment = session.make_segment(proto::SegmentPurpose::staging, 0, kStagingBytes);
  proto::Mapping memory = proto::Mapping::map(session.segment_files.back(), 0, kStagingBytes, proto::Access::read_write);
  const RawReply mapped = session.call(proto::SegmentMapRecord{segment, 0, 0});
  if (mapped.status != 0 || !memory) throw Failure("staging memory is refused: " + std::to_string(mapped.status));
  return memory;
}

std::uint64_t make_chunk(RawSession& session, std::uint64_t bytes) {
  const RawReply made = session.call(proto::ChunkCreateRecord{bytes});
  if (made.status != 0) throw Failure("ChunkCreate: " + std::to_string(made.status));
  return made.body<proto::ChunkCreateReply>().address;
}

void wait_for_all(RawSession& session) {
  const std::uint32_t value = session.fence(0).value.load() + 1;
  session.post(proto::FenceRecord{value, 0});
  session.await_fence(value);
}

proto::CopyRecord copy(Space to, std::uint64_t destination, Space from, std::uint64_t source, std::uint64_t bytes) {
  proto::CopyRecord record{};
  record.destination = destination;
  record.source = source;
  record.size_bytes = bytes;
  record.destination_space = to;
  record.source_space = from;
  return record;
}

// Posts it and waits: it must have been refused as an application's mistake is.
template <typename Record>
void require_refused(RawSession& session, const Record& record, const char* what) {
  session.post(record);
  wait_for_all(session);
  if (session.header().async_error.exchange(0) != kInvalidValue) throw Failure(std::string(what) + " is not refused");
}

constexpr std::uint64_t kArrayBytes = 4096;  // one row

// A copy of one row, as no correct client writes it: `forge` makes it so of one that is right, from a device chunk at `own` to an array. The
// session is ended for it, before anything is copied.
template <typename Forge>
void require_ended(const char* what, Forge forge) {
  RawSession session;
  const std::uint64_t own = make_chunk(session, 2u << 20);
  proto::ArrayCreateRecord create{};
  create.array = proto::ArrayId::make(1, 1);
  create.width = kArrayBytes;
  create.format = 1;  // bytes
  create.channels = 1;
  if (const RawReply made = session.call(create); made.status != 0) throw Failure("ArrayCreate: " + std::to_string(made.status));
  proto::ArrayCopyRecord copy{};
  copy.destination = create.array.value;
  copy.destination_space = Space::array;
  copy.source = own;
  copy.source_space = Space::device;
  copy.source_pitch = copy.width = kArrayBytes;
  copy.source_rows = copy.height = copy.depth = 1;
  session.post(copy);
  wait_for_all(session);
  if (session.header().async_error.exchange(0) != 0) throw Failure("a right copy to an array is refused");
  forge(copy, own);
  session.post(copy);
  try {
    wait_for_all(session);
  } catch (const Failure&) {
    if (!session.is_active()) return;  // as it must be
    throw;
  }
  throw Failure(std::string(what) + " is not refused");
}

void turn_around(proto::ArrayCopyRecord& copy) {
  std::swap(copy.destination, copy.source);
  std::swap(copy.destination_space, copy.source_space);
  std::swap(copy.destination_pitch, copy.source_pitch);
  std::swap(copy.destination_rows, copy.source_rows);
}

// Linear ends whose offsets lead to `address`, and copies without an array.
void reach_by_arrays(std::uint64_t address) {
  require_ended("an array's copy from another client's memory", [&](auto& copy, std::uint64_t own) { copy.source_offset[0] = address - own; });
  require_ended("an array's copy into another client's memory", [&](auto& copy, std::uint64_t own) {
    turn_around(copy);
    copy.destination_offset[0] = address - own;
  });
  require_ended("an array's copy from rows that are another client's", [&](auto& copy, std::uint64_t own) {
    copy.source_pitch = address - own;
    copy.source_offset[1] = 1;
  });
  require_ended("a copy without an array from another client's memory to one's own", [&](auto& copy, std::uint64_t own) {
    copy.destination = own + kArrayBytes;
    copy.destination_space = Space::device;
    copy.destination_pitch = kArrayBytes;
    copy.destination_rows = 1;
    copy.source_offset[0] = address - own;
  });
  require_ended("a copy without an array into another client's memory", [&](auto& copy, std::uint64_t own) {
    copy.destination = own;
    copy.destination_space = Space::device;
    copy.destination_pitch = kArrayBytes;
    copy.destination_rows = 1;
    copy.destination_offset[0] = address - own;
  });
}

}  // namespace

std::string inspect(Hostile& hostile) {
  RawSession& session = hostile.own();
  // The header page tells of the session; all behind it is this client's own to fill.
  std::size_t found = bytes_set(session.control.data() + proto::kPageBytes, proto::kRingOffset - proto::kPageBytes);
  found += bytes_set(session.ring.data(), proto::kRingBytes) + bytes_set(session.fences.data(), proto::kFenceSegmentBytes);
  const proto::Mapping memory = make_staging(session);
  found += bytes_set(memory.data(), memory.size());
  session.make_segment(proto::SegmentPurpose::pinned, session.attached.pinned_lease.address, kStagingBytes);
  const proto::Mapping own_pinned = proto::Mapping::map(session.segment_files.back(), 0, kStagingBytes, proto::Access::read_only);
  found += bytes_set(own_pinned.data(), own_pinned.size());
  // Chunks of several sizes, each read in pieces through the staging memory.
  for (const std::uint64_t size : {2u << 20, 8u << 20, 2u << 20, 64u << 20}) {
    const std::uint64_t chunk = make_chunk(session, size);
    for (std::uint64_t at = 0; at < size; at += std::min<std::uint64_t>(size, kStagingBytes)) {
      session.post(copy(Space::staging, 0, Space::device, chunk + at, std::min<std::uint64_t>(size, kStagingBytes)));
      wait_for_all(session);
      found += bytes_set(memory.data(), std::min<std::uint64_t>(size, kStagingBytes));
    }
  }
  return "ok " + std::to_string(found);
}

std::string reach(Hostile& hostile, std::uint64_t address) {
  RawSession& session = hostile.own();
  const proto::Mapping memory = make_staging(session);
  const std::uint64_t own = make_chunk(session, 2u << 20);
  for (const Space space : {Space::device, Space::registered_host}) {
    require_refused(session, copy(Space::staging, 0, space, address, 4096), "a copy from another client's memory");
    require_refused(session, copy(Space::device, own, space, address, 4096), "a copy from another client's memory to one's own");
    require_refused(session, copy(space, address, Space::staging, 0, 4096), "a copy into another client's memory");
    require_refused(session, copy(space, address, Space::device, own, 4096), "a copy from one's own into another client's memory");
  }
  require_refused(session, proto::FillRecord{address, 0, 4096, 1, 0, 1}, "a fill of another client's memory");
  // From its own memory on into what lies behind.
  const std::uint64_t far = address > own ? address - own : (2u << 20) + 4096;
  require_refused(session, copy(Space::staging, 0, Space::device, own, (2u << 20) + 1), "a copy from beyond one's memory");
  require_refused(session, proto::FillRecord{own, far, 16, 2, 0, 1}, "a fill whose second row is another client's");
  require_refused(session, copy(Space::staging, kStagingBytes - 1, Space::device, own, 2), "a copy beyond the staging memory");
  require_refused(session, copy(Space::staging, ~0ull, Space::device, own, 2), "a copy around the end of all addresses");
  if (bytes_set(memory.data(), memory.size()) != 0) throw Failure("something was read");
  reach_by_arrays(address);
  return "ok";
}

std::string borrow(Hostile& hostile) {
  RawSession& owner = hostile.own();
  RawSession other;
  const std::uint64_t chunk = make_chunk(owner, 2u << 20);
  const std::uint64_t segment = owner.make_segment(proto::SegmentPurpose::staging, 0, kStagingBytes);
  if (other.call(proto::SegmentMapRecord{segment, 0, 0}).status == 0) throw Failure("another session's segment is mapped");
  require_refused(other, proto::SegmentUnmapRecord{segment}, "the end of another session's segment");
  require_refused(other, proto::ChunkReleaseRecord{chunk}, "the release of another session's chunk");
  proto::ImageOpen open;
  open.size_bytes = 100;
  const auto image = owner.connection.ask<proto::ImageOpened>(open).image;
  if (other.connection.ask<proto::Done>(proto::ImageSeal{.image = image}).header.status == 0) throw Failure("another session's image is sealed");
  // The owner's are what they were.
  if (owner.call(proto::SegmentMapRecord{segment, 0, 0}).status != 0) throw Failure("the owner's segment is gone");
  owner.post(proto::FillRecord{chunk, 0, 4096, 1, 0x11, 1});
  owner.post(copy(Space::staging, 0, Space::device, chunk, 4096));
  wait_for_all(owner);
  const proto::Mapping memory = proto::Mapping::map(owner.segment_files.back(), 0, kStagingBytes, proto::Access::read_only);
  if (memory.data()[4095] != std::byte{0x11}) throw Failure("the owner's chunk is gone");
  return "ok";
}

}  // namespace mpsshim::test
