// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/dispatch.hpp"

#include <cstring>
#include <utility>

namespace mpsshim::broker {

namespace {

// Checks what the structure's declaration says about the record, then calls its handler. The structure lies at the front: a client of a later
// minor version may send a longer one, whose unknown end is ignored.
template <typename Record>
void deliver(Session& session, const char* name, const proto::RecordHeader& header, const std::byte* bytes) {
  const std::size_t padded_trailing = (header.trailing_bytes + proto::kRecordAlignment - 1) / proto::kRecordAlignment * proto::kRecordAlignment;
  const std::size_t payload = header.size_bytes - sizeof(proto::RecordHeader);
  if (padded_trailing > payload || payload - padded_trailing < Record::kBodyBytes) return session.fail(name, "it is too short");
  if (!Record::kHasTrailing && header.trailing_bytes != 0) return session.fail(name, "it has trailing bytes");
  if (!Record::kIsCall && header.reply_slot != proto::kNoReplySlot) return session.fail(name, "it names a reply slot");
  if (Record::kIsCall && header.reply_slot >= proto::kReplySlots) return session.fail(name, "its reply slot is out of range");
  Record record;
  if constexpr (Record::kBodyBytes > 0) std::memcpy(static_cast<void*>(&record), bytes + sizeof(proto::RecordHeader), Record::kBodyBytes);
  if (const char* field = record.out_of_range()) return session.fail(name, std::string("its ") + field + " is nothing that it can be");
  Incoming incoming{session, name, header, std::span(bytes + header.size_bytes - padded_trailing, header.trailing_bytes), {}};
  if (Record::kIsCall) incoming.reply = Reply(session.shared_from_this(), header.reply_slot, header.sequence);
  handle(incoming, record);
}

void dispatch(Session& session, const proto::RecordHeader& header, const std::byte* bytes) {
  switch (static_cast<proto::RecordId>(header.id)) {
#define MPSSHIM_RECORD(enumerator, structure) \
  case proto::RecordId::enumerator: return deliver<proto::structure>(session, #enumerator, header, bytes);
#include "gen/record_names.inc"
#undef MPSSHIM_RECORD
  }
  session.fail("a record", "its id " + std::to_string(header.id) + " is unknown");
}

}  // namespace

StreamQueue* Incoming::stream() {
  if (StreamQueue* queue = session.streams().find(header.stream)) return queue;
  if (!header.stream.has_kind()) {
    malformed("its stream is no stream id");
  } else {
    reject(CUDA_ERROR_INVALID_HANDLE);
  }
  return nullptr;
}

void Incoming::write_fence_of_missing_stream(std::uint32_t value) {
  if (!header.stream.has_kind() || header.stream.index() >= proto::kFenceWords) return;
  session.channel().fence(header.stream.index()).value.store(value, std::memory_order_release);
}

// What a record makes of itself in queues is its short steps: a launch is one, a wait for all streams is as many as there are. A record that
// queues nothing may have called the driver, searched, or waited for a lock.
Dispatched dispatch_batch(Session& session, std::span<const std::byte> batch, TurnBudget& budget) {
  Dispatched done;
  while (!batch.empty() && session.is_reading()) {
    proto::RecordHeader header;
    std::memcpy(&header, batch.data(), sizeof header);
    dispatch(session, header, batch.data());
    batch = batch.subspan(header.size_bytes);
    done.bytes += header.size_bytes;
    ++done.records;
    if (budget.is_spent_after(session.streams().appended()) || !session.has_room()) break;
  }
  return done;
}

void dispatch_batch(Session& session, std::span<const std::byte> batch) {
  TurnBudget all = TurnBudget::unlimited();
  while (!batch.empty() && session.is_reading()) batch = batch.subspan(dispatch_batch(session, batch, all).bytes);
}

}  // namespace mpsshim::broker
