// SPDX-License-Identifier: Apache-2.0
// Records that are right, or refused as an application's mistake, and cost as much time as they can.
#include <chrono>

#include "proto/graph_nodes.hpp"
#include "tests/hostile/programs/attacks.hpp"

namespace mpsshim::test {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kPieceBytes = 2u << 20;
constexpr std::uint32_t kStreams = proto::kFenceWords - 1;  // beside the NULL stream
constexpr std::uint32_t kNonBlocking = 1;
constexpr std::size_t kRoom = 64u << 10;  // what one step of an attack may write

// Takes steps for so long, each with room for it in the ring; a ring that stays full is waited for no longer than that. Returns their number.
template <typename Step>
unsigned keep_at(RawSession& session, int duration_ms, Step&& step) {
  const auto end = Clock::now() + std::chrono::milliseconds(duration_ms);
  unsigned steps = 0;
  while (Clock::now() < end && session.is_active()) {
    if (session.producer.reserve(kRoom) == nullptr) {
      session.producer.wait_for_room(1'000);
      continue;
    }
    step(steps++);
  }
  return steps;
}

std::string done(RawSession& session, unsigned steps) {
  if (!session.is_active()) throw Failure("the session has ended");
  return "ok " + std::to_string(steps);
}

void require_success(const RawReply& reply, const char* what) {
  if (reply.status != 0) throw Failure(std::string(what) + ": " + std::to_string(reply.status));
}

proto::StreamId stream(std::uint32_t index) { return proto::StreamId::make(index, 1); }

void make_streams(RawSession& session) {
  for (std::uint32_t index = 1; index <= kStreams; ++index) session.post(proto::StreamCreateRecord{kNonBlocking, 0}, stream(index));
  require_success(session.call(proto::ReleaseRecord{}), "StreamCreate");
}

std::uint64_t make_chunk(RawSession& session) {
  const RawReply made = session.call(proto::ChunkCreateRecord{kPieceBytes});
  require_success(made, "ChunkCreate");
  return made.body<proto::ChunkCreateReply>().address;
}

// One piece of memory, mapped again and again side by side; where that begins.
std::uint64_t make_mappings(RawSession& session, std::uint32_t count) {
  const RawReply reserved = session.call(proto::RangeReserveRecord{(count + 1) * kPieceBytes, kPieceBytes, 0});
  require_success(reserved, "RangeReserve");
  const std::uint64_t begin = reserved.body<proto::RangeReserveReply>().address;
  const auto memory = proto::MemoryId::make(1, 1);
  require_success(session.call(proto::MemoryCreateRecord{memory, kPieceBytes}), "MemoryCreate");
  for (std::uint32_t i = 0; i < count; ++i) {
    const proto::MappingCreateRecord record{begin + i * kPieceBytes, kPieceBytes, memory, 1, 0};
    if (i % 1'024 == 0)
      require_success(session.call(record), "MappingCreate");
    else
      session.post(record, proto::kNullStream, {}, 1);
  }
  require_success(session.call(proto::ReleaseRecord{}), "Release");
  return begin;
}

void fill_word(RawSession& session, std::uint64_t address, proto::StreamId in) { session.post(proto::FillRecord{address, 0, 1, 1, 7, 4}, in); }

}  // namespace

std::string ranges(Hostile& hostile, int duration_ms) {
  RawSession& session = hostile.own();
  const unsigned steps = keep_at(session, duration_ms, [&](unsigned i) {
    session.post(proto::RangeReserveRecord{kPieceBytes, kPieceBytes, 0}, proto::kNullStream, {}, static_cast<std::uint16_t>(i % proto::kReplySlots));
  });
  return done(session, steps);
}

std::string spans(Hostile& hostile, int duration_ms) {
  constexpr std::uint32_t kMappings = 8'192;
  RawSession& session = hostile.own();
  const std::uint64_t begin = make_mappings(session, kMappings);
  const unsigned steps = keep_at(session, duration_ms, [&](unsigned) {
    session.post(proto::FillRecord{begin, 0, kMappings * kPieceBytes + 1, 1, 7, 1});  // one byte too many, at the far end
  });
  return done(session, steps);
}

std::string mappings(Hostile& hostile, int duration_ms) {
  constexpr std::uint32_t kMappings = 2'048;
  RawSession& session = hostile.own();
  const std::uint64_t begin = make_mappings(session, kMappings);
  const std::uint64_t all = kMappings * kPieceBytes;
  unsigned steps = keep_at(session, duration_ms, [&](unsigned i) {
    session.post(proto::MappingAccessRecord{begin, all, i % 2, 0}, proto::kNullStream, {}, static_cast<std::uint16_t>(i % proto::kReplySlots));
  });
  for (std::uint32_t i = 0; i < kMappings; ++i) session.post(proto::MappingEndRecord{begin + i * kPieceBytes});
  const auto memory = proto::MemoryId::make(2, 1);
  steps += keep_at(session, duration_ms / 4, [&](unsigned i) {
    session.post(proto::MemoryCreateRecord{memory, kPieceBytes}, proto::kNullStream, {}, static_cast<std::uint16_t>(i % proto::kReplySlots));
  });
  return done(session, steps);
}

std::string barriers(Hostile& hostile, int duration_ms) {
  RawSession& session = hostile.own();
  make_streams(session);
  const std::uint64_t chunk = make_chunk(session);
  const std::uint64_t segment = session.make_segment(proto::SegmentPurpose::staging, 0, 64u << 10);
  require_success(session.call(proto::SegmentMapRecord{segment, 0, 0}), "SegmentMap");
  proto::CopyRecord copy{};
  copy.destination = chunk;
  copy.size_bytes = 4;
  copy.source_space = proto::MemorySpace::staging;
  copy.flags = proto::CopyFlag::before_all_later;
  const unsigned steps = keep_at(session, duration_ms, [&](unsigned i) { session.post(copy, stream(1 + i % kStreams)); });
  return done(session, steps);
}

std::string joins(Hostile& hostile, int duration_ms) {
  RawSession& session = hostile.own();
  make_streams(session);
  const std::uint64_t chunk = make_chunk(session);
  const unsigned steps = keep_at(session, duration_ms, [&](unsigned i) {
    if (i % 2'048 < kStreams)
      fill_word(session, chunk, stream(1 + i % 2'048));
    else
      session.post(proto::StreamJoinRecord{1, 1}, stream(1 + i % kStreams));
  });
  return done(session, steps);
}

// What waits for many streams, of which the last alone stands.
std::string standing(Hostile& hostile, int duration_ms) {
  RawSession& session = hostile.own();
  make_streams(session);
  const std::uint64_t chunk = make_chunk(session);
  session.post(proto::HostFunctionRecord{1, 1}, stream(kStreams));
  const unsigned steps = keep_at(session, duration_ms, [&](unsigned i) {
    if (i % 64 == 0) fill_word(session, chunk, stream(1 + i / 64 % (kStreams - 1)));
    session.post(proto::ReleaseRecord{}, proto::kNullStream, {}, static_cast<std::uint16_t>(i % proto::kReplySlots));
  });
  return done(session, steps);
}

// Each stream waits for the next one, and the last gets on first.
std::string ladders(Hostile& hostile, int duration_ms) {
  RawSession& session = hostile.own();
  make_streams(session);
  for (std::uint32_t index = 1; index <= kStreams; ++index) session.post(proto::EventCreateRecord{proto::EventId::make(index, 1), 2, 0});
  const auto end = Clock::now() + std::chrono::milliseconds(duration_ms);
  unsigned rounds = 0;
  while (Clock::now() < end) {
    ++rounds;
    for (std::uint32_t index = 1; index <= kStreams; ++index) session.post(proto::HostFunctionRecord{3 * rounds, rounds}, stream(index));
    for (std::uint32_t index = kStreams; index >= 1; --index) {
      if (index < kStreams) session.post(proto::StreamWaitEventRecord{proto::EventId::make(index + 1, 1), 0, 0}, stream(index));
      session.post(proto::EventRecordRecord{proto::EventId::make(index, 1), 3 * rounds + 1, 0}, stream(index));
    }
    for (std::uint32_t index = 1; index <= kStreams; ++index) session.fence(index).host_value.store(rounds);
    session.ring_doorbells();
    session.await_fence(3 * rounds + 1, 1);
  }
  return done(session, rounds);
}

std::string graphs(Hostile& hostile, int duration_ms) {
  constexpr std::uint32_t kNodes = 50'000;
  constexpr std::uint32_t kNodesOfRecord = 1'024;
  RawSession& session = hostile.own();
  const auto end = Clock::now() + std::chrono::milliseconds(duration_ms);
  unsigned rounds = 0;
  while (Clock::now() < end) {
    const auto exec = proto::Id<proto::HandleKind::graph_exec>::make(0, ++rounds);
    std::vector<proto::GraphNodeHeader> nodes;
    for (std::uint32_t index = 0; index < kNodes; ++index) {
      nodes.push_back({index, proto::GraphNodeKind::empty, 1, 0, 0});
      if (nodes.size() < kNodesOfRecord && index + 1 < kNodes) continue;
      session.post(proto::GraphNodesRecord{exec}, proto::kNullStream, std::as_bytes(std::span(nodes)));
      nodes.clear();
    }
    require_success(session.call(proto::GraphInstantiateRecord{exec, 0, kNodes, 0}), "GraphInstantiate");
    session.post(proto::GraphExecDestroyRecord{exec});
  }
  return done(session, rounds);
}

std::string chunk_storm(Hostile& hostile, int duration_ms) {
  RawSession& session = hostile.own();
  unsigned steps = 0;
  for (const auto end = Clock::now() + std::chrono::milliseconds(duration_ms); Clock::now() < end;) {
    for (std::uint16_t slot = 0; slot < proto::kReplySlots; ++slot) {
      session.arm(slot);
      session.post(proto::ChunkCreateRecord{kPieceBytes}, proto::kNullStream, {}, slot);
    }
    for (std::uint16_t slot = 0; slot < proto::kReplySlots; ++slot) {
      const RawReply made = session.wait(slot);
      if (made.status != 0) continue;
      ++steps;
      session.post(proto::ChunkReleaseRecord{made.body<proto::ChunkCreateReply>().address});
    }
  }
  return done(session, steps);
}

std::string pins(Hostile& hostile, int duration_ms) {
  constexpr std::uint64_t kBytes = 64u << 10;
  RawSession& session = hostile.own();
  unsigned steps = 0;
  for (const auto end = Clock::now() + std::chrono::milliseconds(duration_ms); Clock::now() < end;) {
    const std::uint64_t at = session.attached.pinned_lease.address + steps++ % 1'024 * kBytes;
    const std::uint64_t segment = session.make_segment(proto::SegmentPurpose::pinned, at, kBytes);
    session.segment_files.clear();
    (void)session.call(proto::SegmentMapRecord{segment, 0, 0});  // its place may still be in use
    session.post(proto::SegmentUnmapRecord{segment});
  }
  return done(session, steps);
}

std::string events(Hostile& hostile, int duration_ms) {
  RawSession& session = hostile.own();
  const unsigned steps = keep_at(session, duration_ms, [&](unsigned i) {
    const auto id = proto::EventId::make(i % 60'000, 1 + i / 60'000);
    session.post(proto::EventCreateRecord{id, 0, 0});
    session.post(proto::EventRecordRecord{id, i + 1, 0});
    if (i >= 50'000) session.post(proto::EventDestroyRecord{proto::EventId::make((i - 50'000) % 60'000, 1 + (i - 50'000) / 60'000)});
  });
  return done(session, steps);
}

namespace {

std::uint64_t make_kernel_image(Hostile& hostile) {
  return hostile.own().make_image("//" + std::to_string(hostile.random()) +
                                  "\n.version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nop()\n{\n  ret;\n}\n");
}

}  // namespace

std::string module_handles(Hostile& hostile, int duration_ms) {
  RawSession& session = hostile.own();
  const std::uint64_t image = make_kernel_image(hostile);
  const unsigned steps = keep_at(session, duration_ms, [&](unsigned i) {
    session.post(proto::ModuleLoadRecord{proto::ModuleId::make(i + 1, 1), image, false, {}}, proto::kNullStream, {},
                 static_cast<std::uint16_t>(i % proto::kReplySlots));
  });
  return done(session, steps);
}

std::string launches(Hostile& hostile, int duration_ms) {
  RawSession& session = hostile.own();
  make_streams(session);
  const auto module = proto::ModuleId::make(1, 1);
  const auto function = proto::FunctionId::make(1, 1);
  require_success(session.call(proto::ModuleLoadRecord{module, make_kernel_image(hostile), false, {}}), "ModuleLoad");
  session.post(proto::FunctionBindRecord{module, function, 0, 0});
  proto::LaunchRecord launch{};
  launch.function = function;
  launch.grid_x = launch.grid_y = launch.grid_z = launch.block_x = launch.block_y = launch.block_z = 1;
  const unsigned steps = keep_at(session, duration_ms, [&](unsigned i) { session.post(launch, stream(1 + i % kStreams)); });
  return done(session, steps);
}

}  // namespace mpsshim::test
