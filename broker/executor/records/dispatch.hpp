// SPDX-License-Identifier: Apache-2.0
// From bytes to typed handlers. A batch lies in private memory; RingConsumer has checked that its records are whole. Here each record's id,
// size, trailing bytes and reply slot are checked, then its handler is called with a structure of its own.
//
// Trust, the rule of all handlers: what a correct client can never send (an unknown record, a short one, an id of another kind, a length
// beyond the record) ends the session: malformed(). What a correct client can send by an application's fault (a stale handle, an address
// that is not the session's) is an error of that call: reject().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "broker/executor/base/turn_budget.hpp"
#include "broker/executor/memory/checked_memory.hpp"
#include "broker/executor/records/reply.hpp"
#include "broker/executor/sessions/session.hpp"
#include "gen/records.hpp"
#include "proto/post_arrow.hpp"
#include "proto/record.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

// What every handler gets. What a record's `order` (proto/spec/records.toml) gives it besides is in the types below: a handler of one order has
// no way to the tools of another.
class Incoming {
 public:
  Session& session;
  const char* const name;                     // of the record
  const std::span<const std::byte> trailing;  // in the worker's batch: valid during the call

  Incoming(Session& owner, const char* record, const proto::RecordHeader& header, std::span<const std::byte> bytes)
      : session(owner), name(record), trailing(bytes), header_(header) {
    if (header.reply_slot != proto::kNoReplySlot) reply_ = Reply(owner.shared_from_this(), header.reply_slot, header.sequence);
  }

  void malformed(const std::string& reason) { session.fail(name, reason); }
  // The answer of a call, or the client's asynchronous error.
  void reject(CUresult error) {
    if (reply_.is_pending()) return reply_.answer(error);
    session.channel().set_async_error(error);
  }

  // What CheckedMemory does not let through.
  void refuse(const Refusal& refusal) {
    if (refusal.malformed != nullptr) return malformed(refusal.malformed);
    if (refusal) reject(refusal.result);
  }
  [[nodiscard]] CheckedMemory checked() const { return session.checked(); }

  // The object of an id; where there is none the record has been dealt with.
  template <proto::HandleKind Kind, typename T>
  [[nodiscard]] proto::Known<T> find(const proto::HandleTable<Kind, T>& table, proto::Id<Kind> id) {
    if (const proto::Known<T> known = table.find(id)) return known;
    if (!id.has_kind()) {
      malformed("an id is of another kind");
    } else {
      reject(CUDA_ERROR_INVALID_HANDLE);
    }
    return {};
  }
  [[nodiscard]] std::string text() const { return {reinterpret_cast<const char*>(trailing.data()), trailing.size()}; }

 protected:
  const proto::RecordHeader header_;
  Reply reply_;  // pending where the record is a call
};

// order = "stream": work for the header's stream, which is there.
class StreamPost : public Incoming {
 public:
  StreamQueue& queue;
  StreamPost(Session& owner, const char* record, const proto::RecordHeader& header, std::span<const std::byte> bytes, StreamQueue& found)
      : Incoming(owner, record, header, bytes), queue(found) {}
  [[nodiscard]] proto::StreamId stream() const { return header_.stream; }
  void append(StreamOp op) {
    session.streams().append(queue, std::move(op));
    if (proto::trace::enabled() && proto::has_arrow(static_cast<proto::RecordId>(header_.id))) [[unlikely]]
      queue.notes.arrows.note(queue.position(), proto::arrow_number(session.id(), session.channel().epoch(), header_.sequence));
  }
};

// order = "session", without a reply. Nothing is known of the header's stream: it is the id of one that is to be made.
class SessionPost : public Incoming {
 public:
  using Incoming::Incoming;
  [[nodiscard]] proto::StreamId new_stream() const { return header_.stream; }
};

// order = "session", with a reply, which cannot be kept: it is given in the record's turn.
class SessionCall : public Incoming {
 public:
  using Incoming::Incoming;
  template <typename Body>
  void answer_with(CUresult status, const Body& body, std::span<const std::byte> bytes = {}) {
    reply_.answer_with(status, body, bytes);
  }
};

// order = "out_of_line": the reply may be given later, by whoever has it then.
class OutOfLineCall : public SessionCall {
 public:
  using SessionCall::SessionCall;
  [[nodiscard]] Reply& reply() { return reply_; }
  [[nodiscard]] SharedReply share_reply() { return std::make_shared<Reply>(std::move(reply_)); }
};
// What the handler of a record gets: it is declared with that alone, so one that takes another's does not link.
template <typename Record>
struct IncomingFor {
  static constexpr proto::RecordOrder kOrder = Record::kOrder;
  static_assert(kOrder == proto::RecordOrder::session || Record::kIsCall == (kOrder == proto::RecordOrder::out_of_line));
  using InTurn = std::conditional_t<Record::kIsCall, SessionCall, SessionPost>;
  using Type = std::conditional_t<kOrder == proto::RecordOrder::stream, StreamPost,
                                  std::conditional_t<kOrder == proto::RecordOrder::session, InTurn, OutOfLineCall>>;
};
template <typename Record>
using IncomingOf = typename IncomingFor<Record>::Type;

// For a launch: what its function's texture and surface references are bound to (handlers_reference.cpp). CUDA_ERROR_INVALID_HANDLE: an array
// that is bound is gone; CUDA_ERROR_INVALID_VALUE: memory that is bound is.
[[nodiscard]] CUresult find_bindings(Session& session, const SessionFunction& function, std::shared_ptr<const LaunchReferences>& found);

// Dispatches whole records one after another until the session fails, has as much queued or under way as it may, or the budget is spent. How much
// of the batch that was: at least one record of one that is not empty.
struct Dispatched {
  std::size_t bytes = 0;
  std::uint32_t records = 0;
};
Dispatched dispatch_batch(Session& session, std::span<const std::byte> batch, TurnBudget& budget);
// All of it, whatever it takes.
void dispatch_batch(Session& session, std::span<const std::byte> batch);

// One for each record, in handlers_*.cpp.
#define MPSSHIM_RECORD(enumerator, structure) void handle(IncomingOf<proto::structure>& incoming, const proto::structure& record);
#include "gen/record_names.inc"
#undef MPSSHIM_RECORD

}  // namespace mpsshim::broker
