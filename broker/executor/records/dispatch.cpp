// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/records/dispatch.hpp"

#include <cstring>
#include <optional>

namespace mpsshim::broker {

namespace {

// What the record writes to its stream's fence word, if it does.
template <typename Record>
std::optional<std::uint32_t> fence_value_of(const Record& record) {
  if constexpr (requires { record.fence_value; }) return record.fence_value;
  return std::nullopt;
}

// A fence in a stream that could not be created is reached at once: nothing is in front of it, and the client waits for it.
void miss_stream(Session& session, const char* name, const proto::RecordHeader& header, std::optional<std::uint32_t> fence_value) {
  if (!header.stream.has_kind()) return session.fail(name, "its stream is no stream id");
  session.channel().set_async_error(CUDA_ERROR_INVALID_HANDLE);
  if (!fence_value || header.stream.index() >= proto::kFenceWords) return;
  session.channel().fence(header.stream.index()).value.store(*fence_value, std::memory_order_release);
}

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
  const std::span trailing(bytes + header.size_bytes - padded_trailing, header.trailing_bytes);
  if constexpr (Record::kOrder == proto::RecordOrder::stream) {
    StreamQueue* const queue = session.streams().find(header.stream);
    if (queue == nullptr) return miss_stream(session, name, header, fence_value_of(record));
    StreamPost incoming(session, name, header, trailing, *queue);
    handle(incoming, record);  // handlers_*.cpp
  } else {
    IncomingOf<Record> incoming(session, name, header, trailing);
    handle(incoming, record);
  }
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
