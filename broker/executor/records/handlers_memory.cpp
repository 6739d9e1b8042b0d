// SPDX-License-Identifier: Apache-2.0
// Device memory in chunks, host memory in segments. Whatever may take long is a helper's; whatever waits for kernels is a window's.
#include <utility>

#include "broker/executor/link/control_link.hpp"
#include "broker/executor/records/dispatch.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::uint64_t kQuickChunkBytes = 64u << 20;  // mapping so much takes a worker tens of microseconds

CUresult create_chunk(Session& session, std::uint64_t size_bytes, MemoryMap::Chunk& chunk) {
  const ScopedMark mark(session.id(), "cuMemCreate", Patience::patient);  // the largest take their time
  const proto::trace::Span span("driver", "cuMemCreate", {"session", session.id()});
  return session.parts().faults.check(session.memory().create_chunk(size_bytes, chunk), session.id(), "cuMemCreate");
}

void answer(Reply& reply, CUresult result, const MemoryMap::Chunk& chunk) {
  reply.answer_with(result, proto::ChunkCreateReply{chunk.address, chunk.size_bytes});
}

bool is_lacking(CUresult result) { return result == CUDA_ERROR_OUT_OF_MEMORY || result == MemoryMap::kNoRoomInLeases; }

// The device, its user's share of it, or the lease, is full.
void create_after_releases(Session& session, std::uint64_t size_bytes, const SharedReply& reply) {
  session.start_after_releases([size_bytes, reply](const std::shared_ptr<Session>& self) {
    MemoryMap::Chunk chunk;
    const CUresult result = create_chunk(*self, size_bytes, chunk);
    answer(*reply, result, chunk);
    self->finish_job();
  });
}

CUresult map_segment(Session& session, const proto::SegmentMapRecord& record, std::uint64_t& device_address) {
  // The executor before this one may have ended between the segment's creation and this record: then it has come with the session's memory.
  if (const std::optional<CUdeviceptr> restored = session.memory().segments().find(record.segment)) {
    device_address = *restored;
    return CUDA_SUCCESS;
  }
  ExecutorParts& parts = session.parts();
  ReceivedSegment segment;
  const CUresult announced = parts.control.take_segment(session.id(), record.segment, [&] { return session.is_gone(); }, segment);
  if (announced != CUDA_SUCCESS) return announced;
  const ScopedMark mark(session.id(), "cuMemHostRegister", Patience::patient);
  const proto::trace::Span span("driver", "cuMemHostRegister", {"session", session.id()});
  const CUresult result =
      session.memory().segments().map(record.segment, {segment.purpose, segment.address, segment.is_peers}, record.flags, segment.file, device_address);
  return parts.faults.check(result, session.id(), "cuMemHostRegister");
}

// Once nothing under way uses the chunk.
void settle(Session& session, const proto::ChunkResidenceRecord& record, const SharedReply& reply) {
  session.start_job([record, reply](const std::shared_ptr<Session>& self) {
    const char* const call = record.is_on_host ? "cuMemHostRegister" : "cuMemMap";
    CUresult result = CUDA_SUCCESS;
    {
      const ScopedMark mark(self->id(), record.is_on_host ? CallName("cuMemHostRegister") : CallName("cuMemMap"), Patience::patient);
      const proto::trace::Span span("driver", call, {"session", self->id()});
      result = record.is_on_host ? self->memory().settle_on_host(record.address) : self->memory().settle_on_device(record.address);
    }
    reply->answer_with(self->parts().faults.check(result, self->id(), call), proto::ChunkResidenceReply{});
    self->finish_job();
  });
}

}  // namespace

void handle(OutOfLineCall& incoming, const proto::ChunkCreateRecord& record) {
  Session& session = incoming.session;
  const bool releasing = session.is_releasing();  // before the attempt: what is released meanwhile may be what it lacked
  if (record.size_bytes <= kQuickChunkBytes && !session.memory().limit().is_set()) {
    MemoryMap::Chunk chunk;
    const CUresult result = create_chunk(session, record.size_bytes, chunk);
    if (releasing && is_lacking(result)) return create_after_releases(session, record.size_bytes, incoming.share_reply());
    return answer(incoming.reply(), result, chunk);
  }
  session.start_job([releasing, reply = incoming.share_reply(), size = record.size_bytes](const std::shared_ptr<Session>& self) {
    MemoryMap::Chunk chunk;
    const CUresult result = create_chunk(*self, size, chunk);
    if (releasing && is_lacking(result)) {
      return self->finish_job([self, size, reply] { create_after_releases(*self, size, reply); });
    }
    answer(*reply, result, chunk);
    self->finish_job();
  });
}

void handle(SessionPost& incoming, const proto::ChunkReleaseRecord& record) {
  Session& session = incoming.session;
  if (!session.memory().forget_chunk(record.address)) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  session.when_completed([&session, address = record.address, up_to = session.memory().last_given_up()] {
    session.start_job([address, up_to](const std::shared_ptr<Session>& self) {
      self->memory().release_chunk(address, up_to);
      self->finish_job();
    });
  });
}

void handle(OutOfLineCall& incoming, const proto::ChunkResidenceRecord& record) {
  Session& session = incoming.session;
  MemoryMap& memory = session.memory();
  const std::uint64_t wanted = record.is_on_host ? record.segment : 0;
  if (memory.laid_segment(record.address) == wanted) return incoming.answer_with(CUDA_SUCCESS, proto::ChunkResidenceReply{});
  if (record.is_on_host ? !memory.leave_device(record.address, record.segment) : !memory.leave_host(record.address)) {
    return incoming.answer_with(CUDA_ERROR_INVALID_VALUE, proto::ChunkResidenceReply{});
  }
  session.when_completed([&session, record, reply = incoming.share_reply()] {
    if (record.is_on_host) return settle(session, record, reply);
    session.start_window_call("cuMemHostUnregister", [&session, record, reply](WindowResult window) {
      if (window == WindowResult::no_window) {
        session.memory().stay_on_host(record.address);
        return reply->answer_with(CUDA_ERROR_MPS_SERVER_NOT_READY, proto::ChunkResidenceReply{});
      }
      session.memory().release_laid(record.address);
      session.run_on_worker([&session, record, reply] { settle(session, record, reply); });  // before this one's end
    });
  });
}

void handle(OutOfLineCall& incoming, const proto::LeaseUseRecord& record) {
  incoming.session.start_job([reply = incoming.share_reply(), address = record.address](const std::shared_ptr<Session>& session) {
    ExecutorParts& parts = session->parts();
    // An executor that was replaced since it was announced has handed it on.
    std::optional<std::uint64_t> size = session->memory().find_lease(address);
    CUresult result = CUDA_SUCCESS;
    if (!size) {
      ReceivedLease announced;
      result = parts.control.take_lease(
          session->id(), address, [&] { return session->is_gone(); }, announced);
      if (result == CUDA_SUCCESS)
        result = parts.faults.check(session->memory().add_lease(announced.lease, announced.is_peers), session->id(), "cuMemAddressReserve");
      size = announced.lease.size_bytes;
    }
    reply->answer_with(result, proto::LeaseUseReply{*size});
    session->finish_job();
  });
}

void handle(SessionPost& incoming, const proto::LeaseEndRecord& record) {
  Session& session = incoming.session;
  session.memory().close_lease(record.address);
  session.when_completed([&session, address = record.address, up_to = session.memory().last_given_up()] {
    session.start_job([address, up_to](const std::shared_ptr<Session>& self) {
      (void)self->memory().release_leaving(up_to);
      self->memory().release_ranges(address, self->memory().find_lease(address).value_or(0), up_to);
      // One that was never used is there, since its client knows of it.
      if (self->parts().control.forget_lease(self->id(), address) || self->memory().remove_lease(address)) {
        self->parts().control.send(message::LeaseReleased{.session = self->id(), .address = address});
      }
      self->finish_job();
    });
  });
}

void handle(OutOfLineCall& incoming, const proto::SegmentMapRecord& record) {
  incoming.session.start_job([reply = incoming.share_reply(), record](const std::shared_ptr<Session>& session) {
    std::uint64_t device_address = 0;
    const CUresult result = map_segment(*session, record, device_address);
    reply->answer_with(result, proto::SegmentMapReply{device_address});
    session->finish_job();
  });
}

void handle(SessionPost& incoming, const proto::SegmentUnmapRecord& record) {
  Session& session = incoming.session;
  if (!session.memory().segments().forget(record.segment)) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  session.when_completed([&session, segment = record.segment] {
    session.start_window_job(
        "cuMemHostUnregister", [&segments = session.memory().segments(), segment] { segments.release(segment); },
        [&session, segment] {
          session.start_job([segment](const std::shared_ptr<Session>& self) {
            self->memory().segments().unmap(segment);
            self->finish_job();
          });
        });
  });
}

}  // namespace mpsshim::broker
