// SPDX-License-Identifier: Apache-2.0
// Device memory in chunks, host memory in segments. Whatever may take long is a helper's; whatever waits for kernels is a window's.
#include <utility>

#include "broker/executor/control_link.hpp"
#include "broker/executor/dispatch.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::uint64_t kQuickChunkBytes = 64u << 20;  // mapping so much takes a worker tens of microseconds
constexpr unsigned kSegmentTimeoutMs = 2'000;          // the control process announces a segment before its client learns the id

void create_chunk(Session& session, std::uint64_t size_bytes, Reply& reply) {
  MemoryMap::Chunk chunk;
  const ScopedCall call(session.id(), "cuMemCreate");
  const CUresult result = session.parts().faults.check(session.memory().create_chunk(size_bytes, chunk), session.id(), "cuMemCreate");
  reply.answer_with(result, proto::ChunkCreateReply{chunk.address, chunk.size_bytes});
}

CUresult map_segment(Session& session, const proto::SegmentMapRecord& record, std::uint64_t& device_address) {
  // The executor before this one may have ended between the segment's creation and this record: then it has come with the session's memory.
  if (const std::optional<CUdeviceptr> restored = session.memory().find_segment(record.segment)) {
    device_address = *restored;
    return CUDA_SUCCESS;
  }
  ExecutorParts& parts = session.parts();
  const std::optional<ReceivedSegment> segment = parts.control.take_segment(session.id(), record.segment, kSegmentTimeoutMs);
  if (!segment) return CUDA_ERROR_INVALID_VALUE;
  const ScopedCall call(session.id(), "cuMemHostRegister");
  const CUresult result =
      session.memory().map_segment(record.segment, segment->purpose, segment->address, record.flags, segment->file, device_address);
  return parts.faults.check(result, session.id(), "cuMemHostRegister");
}

}  // namespace

void handle(Incoming& incoming, const proto::ChunkCreateRecord& record) {
  if (record.size_bytes <= kQuickChunkBytes) return create_chunk(incoming.session, record.size_bytes, incoming.reply);
  incoming.session.start_job([reply = incoming.share_reply(), size = record.size_bytes](const std::shared_ptr<Session>& session) {
    create_chunk(*session, size, *reply);
    session->finish_job();
  });
}

void handle(Incoming& incoming, const proto::ChunkReleaseRecord& record) {
  Session& session = incoming.session;
  const std::optional<MemoryMap::Chunk> chunk = session.memory().forget_chunk(record.address);
  if (!chunk) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  session.when_completed([&session, chunk = *chunk] {
    session.start_job([chunk](const std::shared_ptr<Session>& self) {
      self->memory().release_chunk(chunk);
      self->finish_job();
    });
  });
}

void handle(Incoming& incoming, const proto::SegmentMapRecord& record) {
  incoming.session.start_job([reply = incoming.share_reply(), record](const std::shared_ptr<Session>& session) {
    std::uint64_t device_address = 0;
    const CUresult result = map_segment(*session, record, device_address);
    reply->answer_with(result, proto::SegmentMapReply{device_address});
    session->finish_job();
  });
}

void handle(Incoming& incoming, const proto::SegmentUnmapRecord& record) {
  Session& session = incoming.session;
  if (!session.memory().forget_segment(record.segment)) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  session.when_completed([&session, segment = record.segment] {
    session.start_window_job("cuMemHostUnregister", [&memory = session.memory(), segment] { memory.release_segment(segment); });
  });
}

}  // namespace mpsshim::broker
