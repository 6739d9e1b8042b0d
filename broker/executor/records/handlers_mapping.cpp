// SPDX-License-Identifier: Apache-2.0
// Memory that clients create and map by themselves. Not in quiet windows: whether any of these calls waits for running kernels on a GPU is not
// measured. What may take long is a helper's.
#include "broker/executor/link/control_link.hpp"
#include "broker/executor/memory/application_memory.hpp"
#include "broker/executor/records/dispatch.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::uint64_t kQuickBytes = 64u << 20;  // mapping so much takes a worker tens of microseconds

bool is_range(std::uint64_t address, std::uint64_t size_bytes) { return size_bytes != 0 && size_bytes <= UINT64_MAX - address; }

CUresult map(Session& session, const proto::MappingCreateRecord& record) {
  const ScopedMark mark(session.id(), "cuMemMap", Patience::patient);
  const proto::trace::Span span("driver", "cuMemMap", {"session", session.id()});
  const CUresult result = session.memory().application().map(record.address, record.size_bytes, record.memory, record.is_accessible);
  return session.parts().faults.check(result, session.id(), "cuMemMap");
}

void map_in_job(Session& session, const proto::MappingCreateRecord& record, const SharedReply& reply, std::uint64_t up_to) {
  session.start_job([record, reply, up_to](const std::shared_ptr<Session>& self) {
    self->memory().application().unmap_forgotten(record.address, record.size_bytes, up_to);
    reply->answer_with(map(*self, record), proto::MappingCreateReply{});
    self->finish_job();
  });
}

CUresult create(Session& session, const proto::MemoryCreateAsRecord& record) {
  const ScopedMark mark(session.id(), "cuMemCreate", Patience::patient);
  const proto::trace::Span span("driver", "cuMemCreate", {"session", session.id()});
  const CUresult result = session.memory().application().create(record.memory, record.size_bytes, record.compression);
  return session.parts().faults.check(result, session.id(), "cuMemCreate");
}

CUresult set_access(Session& session, const proto::MappingAccessRecord& record, std::uint64_t up_to) {
  const ScopedMark mark(session.id(), "cuMemMap", Patience::patient);
  const CUresult result = session.memory().application().set_access(record.address, record.size_bytes, up_to);
  return session.parts().faults.check(result, session.id(), "cuMemSetAccess");
}

// Of many mappings it takes as many calls of the driver's.
void set_access_and_answer(Session& session, const proto::MappingAccessRecord& record, const SharedReply& reply, std::uint64_t up_to) {
  if (session.memory().application().is_quick(record.address, record.size_bytes)) {
    return reply->answer_with(set_access(session, record, up_to), proto::MappingAccessReply{});
  }
  session.start_job([record, reply, up_to](const std::shared_ptr<Session>& self) {
    reply->answer_with(set_access(*self, record, up_to), proto::MappingAccessReply{});
    self->finish_job();
  });
}

// The device is full, but what the session has given back is perhaps still there: awaited, as for chunks.
void create_after_releases(Session& session, const proto::MemoryCreateAsRecord& record, const SharedReply& reply) {
  session.start_after_releases([record, reply](const std::shared_ptr<Session>& self) {
    reply->answer_with(create(*self, record), proto::MemoryCreateAsReply{});
    self->finish_job();
  });
}

}  // namespace

void handle(SessionCall& incoming, const proto::RangeReserveRecord& record) {
  std::uint64_t address = 0;
  const CUresult result = incoming.session.memory().reserve_range(record.size_bytes, record.alignment, record.address, address);
  incoming.answer_with(result, proto::RangeReserveReply{address});
}

void handle(SessionPost& incoming, const proto::RangeFreeRecord& record) {
  Session& session = incoming.session;
  if (!is_range(record.address, record.size_bytes) || !session.memory().leave_range(record.address, record.size_bytes)) {
    return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  }
  session.when_completed([&session, record, up_to = session.memory().last_given_up()] {
    session.start_job([record, up_to](const std::shared_ptr<Session>& self) {
      self->memory().release_ranges(record.address, record.size_bytes, up_to);
      self->finish_job();
    });
  });
}

void handle(OutOfLineCall& incoming, const proto::MemoryCreateRecord& record) {
  handle(incoming, proto::MemoryCreateAsRecord{record.memory, record.size_bytes, CU_MEM_ALLOCATION_COMP_NONE, 0});
}

void handle(SessionCall& incoming, const proto::MemoryPropertiesRecord& record) {
  Session& session = incoming.session;
  proto::MemoryPropertiesReply reply{};
  const CUresult result = session.memory().application().properties(record.memory, reply.compression);
  incoming.answer_with(session.parts().faults.check(result, session.id(), "cuMemGetAllocationPropertiesFromHandle"), reply);
}

void handle(OutOfLineCall& incoming, const proto::MemoryCreateAsRecord& record) {
  Session& session = incoming.session;
  const bool is_leaving = session.is_releasing();
  if (record.size_bytes <= kQuickBytes && !session.memory().limit().is_set()) {
    const CUresult result = create(session, record);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && is_leaving) return create_after_releases(session, record, incoming.share_reply());
    return incoming.answer_with(result, proto::MemoryCreateAsReply{});
  }
  session.start_job([record, is_leaving, reply = incoming.share_reply()](const std::shared_ptr<Session>& self) {
    const CUresult result = create(*self, record);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && is_leaving) {
      return self->finish_job([self, record, reply] { create_after_releases(*self, record, reply); });
    }
    reply->answer_with(result, proto::MemoryCreateAsReply{});
    self->finish_job();
  });
}

void handle(OutOfLineCall& incoming, const proto::MemoryAdoptRecord& record) {
  incoming.session.start_job([record, reply = incoming.share_reply()](const std::shared_ptr<Session>& self) {
    ExecutorParts& parts = self->parts();
    ReceivedPiece piece;
    CUresult result = parts.control.take_piece(self->id(), record.memory.value, [&] { return self->is_gone(); }, piece);
    if (result == CUDA_SUCCESS) {
      const ScopedMark mark(self->id(), "cuMemMap", Patience::patient);
      result = self->memory().application().adopt_shared(record.memory, piece.size_bytes, piece.handle);
      result = parts.faults.check(result, self->id(), "cuMemImportFromShareableHandle");
    }
    reply->answer_with(result, proto::MemoryAdoptReply{piece.size_bytes});
    self->finish_job();
  });
}

void handle(SessionPost& incoming, const proto::MemoryReleaseRecord& record) {
  if (!incoming.session.memory().application().release(record.memory)) incoming.reject(CUDA_ERROR_INVALID_VALUE);
}

void handle(OutOfLineCall& incoming, const proto::MappingCreateRecord& record) {
  Session& session = incoming.session;
  if (!is_range(record.address, record.size_bytes)) return incoming.answer_with(CUDA_ERROR_INVALID_VALUE, proto::MappingCreateReply{});
  // What lay there before is perhaps still in use by work under way.
  if (session.memory().application().has_forgotten(record.address, record.size_bytes)) {
    return session.when_completed(
        [&session, record, reply = incoming.share_reply(), up_to = session.memory().last_given_up()] { map_in_job(session, record, reply, up_to); });
  }
  if (record.size_bytes > kQuickBytes) return map_in_job(session, record, incoming.share_reply(), 0);
  incoming.answer_with(map(session, record), proto::MappingCreateReply{});
}

void handle(OutOfLineCall& incoming, const proto::MappingAccessRecord& record) {
  Session& session = incoming.session;
  ApplicationMemory& memory = session.memory().application();
  const bool is_right = is_range(record.address, record.size_bytes) &&
                        (record.is_accessible ? memory.allow(record.address, record.size_bytes) : memory.forbid(record.address, record.size_bytes));
  if (!is_right) return incoming.answer_with(CUDA_ERROR_INVALID_VALUE, proto::MappingAccessReply{});
  const std::uint64_t up_to = session.memory().last_given_up();
  if (record.is_accessible) return set_access_and_answer(session, record, incoming.share_reply(), up_to);
  // Work under way may still use it, and would bring down the context.
  session.when_completed([&session, record, reply = incoming.share_reply(), up_to] { set_access_and_answer(session, record, reply, up_to); });
}

void handle(SessionPost& incoming, const proto::MappingEndRecord& record) {
  Session& session = incoming.session;
  if (!session.memory().application().forget(record.address)) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  session.when_completed([&session, address = record.address, up_to = session.memory().last_given_up()] {
    session.start_job([address, up_to](const std::shared_ptr<Session>& self) {
      self->memory().application().unmap_forgotten(address, 1, up_to);
      self->finish_job();
    });
  });
}

}  // namespace mpsshim::broker
