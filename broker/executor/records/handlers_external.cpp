// SPDX-License-Identifier: Apache-2.0
// Memory of other interfaces: imported and mapped by helpers, since nothing says how long the driver takes; ended in quiet windows, because the
// driver then waits for every kernel.
#include <utility>

#include "broker/executor/link/control_link.hpp"
#include "broker/executor/memory/checked_calls.hpp"
#include "broker/executor/memory/checked_memory.hpp"
#include "broker/executor/memory/external_memory.hpp"
#include "broker/executor/records/dispatch.hpp"

namespace mpsshim::broker {

namespace {

// The control process counts it for its user until the driver's object has ended, or was never made.
struct TakenPiece {
  TakenPiece(ControlLink& link, std::uint64_t owner, std::uint64_t number) : control(link), session(owner), piece(number) {}
  TakenPiece(const TakenPiece&) = delete;
  ~TakenPiece() { control.send(message::PieceEnded{.session = session, .piece = piece}); }
  ControlLink& control;
  const std::uint64_t session;
  const std::uint64_t piece;
};

CUresult import(Session& session, const proto::ExternalImportRecord& record) {
  ExecutorParts& parts = session.parts();
  ReceivedPiece piece;
  const CUresult announced = parts.control.take_piece(session.id(), record.memory.value, [&] { return session.is_gone(); }, piece);
  if (announced != CUDA_SUCCESS) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  parts.control.send(message::PieceTaken{.session = session.id(), .memory = record.memory.value, .piece = piece.number});
  const auto taken = std::make_shared<const TakenPiece>(parts.control, session.id(), piece.number);
  // What a session shares is behind such a descriptor as well.
  const std::uint32_t type = piece.handle_type != 0 ? piece.handle_type : std::uint32_t{CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD};
  const ScopedMark mark(session.id(), "cuImportExternalMemory", Patience::patient);
  const proto::trace::Span span("driver", "cuImportExternalMemory", {"session", session.id()});
  const CUresult result =
      session.memory().external().import(record.memory, {record.size_bytes, piece.size_bytes, type, record.flags, taken}, std::move(piece.handle));
  return parts.faults.check(result, session.id(), "cuImportExternalMemory");
}

CUresult map(Session& session, const proto::ExternalMapRecord& record, std::uint64_t& address) {
  Checked<CheckedExternalBuffer> part = session.checked().part(record);
  if (!part) return part.refusal().result;
  const ScopedMark mark(session.id(), "cuImportExternalMemory", Patience::patient);
  const CUresult result = session.memory().external().map(*part, address);
  return session.parts().faults.check(result, session.id(), "cuExternalMemoryGetMappedBuffer");
}

CUresult map_array(Session& session, const proto::ExternalMapArrayRecord& record, SessionArray& made) {
  Checked<CheckedExternalArray> part = session.checked().part(record);
  if (!part) return part.refusal().result;
  made.external = part->memory();
  const ScopedMark mark(session.id(), "cuImportExternalMemory", Patience::patient);
  const CUresult result = CheckedCalls(session.parts().driver).map(made.mipmapped, *part);
  return session.parts().faults.check(result, session.id(), "cuExternalMemoryGetMappedMipmappedArray");
}

void end_in_window(Session& session, const char* what, ExternalMemory::Ticket ticket) {
  session.when_completed([&session, what, ticket] {
    session.start_window_job(
        what, [&session, what, ticket] { session.parts().faults.check(session.memory().external().release(ticket), session.id(), what); });
  });
}

}  // namespace

void handle(OutOfLineCall& incoming, const proto::ExternalImportRecord& record) {
  if (!record.memory.has_kind()) return incoming.malformed("its id is of another kind");
  if (record.restores) return incoming.reject(CUDA_ERROR_MPS_SERVER_NOT_READY);  // it was the earlier executor's
  if ((record.flags & ~unsigned{CUDA_EXTERNAL_MEMORY_DEDICATED}) != 0) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  incoming.session.start_job([record, reply = incoming.share_reply()](const std::shared_ptr<Session>& self) {
    reply->answer_with(import(*self, record), proto::ExternalImportReply{});
    self->finish_job();
  });
}

void handle(OutOfLineCall& incoming, const proto::ExternalMapRecord& record) {
  if (!record.memory.has_kind()) return incoming.malformed("its id is of another kind");
  if (record.restores) return incoming.reject(CUDA_ERROR_MPS_SERVER_NOT_READY);
  incoming.session.start_job([record, reply = incoming.share_reply()](const std::shared_ptr<Session>& self) {
    std::uint64_t address = 0;
    const CUresult result = map(*self, record, address);
    reply->answer_with(result, proto::ExternalMapReply{address});
    self->finish_job();
  });
}

void handle(OutOfLineCall& incoming, const proto::ExternalMapArrayRecord& record) {
  Session& session = incoming.session;
  if (!record.memory.has_kind() || !record.array.has_kind()) return incoming.malformed("an id is of another kind");
  if (record.restores) return incoming.reject(CUDA_ERROR_MPS_SERVER_NOT_READY);
  if (!session.arrays().has_room()) return incoming.reject(CUDA_ERROR_OUT_OF_MEMORY);
  session.start_job([record, reply = incoming.share_reply()](const std::shared_ptr<Session>& self) {
    SessionArray made;
    CUresult result = map_array(*self, record, made);
    if (result == CUDA_SUCCESS) self->arrays().own(made);
    made.external = nullptr;  // the driver's array has it
    self->finish_job([self, reply, id = record.array, result, made = std::move(made)]() mutable {
      if (result == CUDA_SUCCESS && !self->arrays().add(id, made)) result = CUDA_ERROR_INVALID_HANDLE;  // it ends with `made`
      reply->answer_with(result, proto::ExternalMapArrayReply{});
    });
  });
}

void handle(SessionPost& incoming, const proto::ExternalUnmapRecord& record) {
  const ExternalMemory::Ticket ticket = incoming.session.memory().external().forget(record.address);
  if (ticket == 0) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  end_in_window(incoming.session, "cuMemFree", ticket);
}

void handle(SessionPost& incoming, const proto::ExternalReleaseRecord& record) {
  const ExternalMemory::Ticket ticket = incoming.session.memory().external().retire(record.memory);
  if (ticket == 0) return incoming.reject(CUDA_ERROR_INVALID_HANDLE);
  end_in_window(incoming.session, "cuDestroyExternalMemory", ticket);
}

}  // namespace mpsshim::broker
