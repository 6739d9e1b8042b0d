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

#include "broker/executor/checked_memory.hpp"
#include "broker/executor/reply.hpp"
#include "broker/executor/session.hpp"
#include "broker/executor/turn_budget.hpp"
#include "gen/records.hpp"
#include "proto/record.hpp"

namespace mpsshim::broker {

struct Incoming {
  Session& session;
  const char* name;  // of the record
  proto::RecordHeader header;
  std::span<const std::byte> trailing;  // in the worker's batch: valid during the call
  Reply reply;                          // pending where the record is a call

  void malformed(const std::string& reason) { session.fail(name, reason); }
  // The answer of a call, or the client's asynchronous error.
  void reject(CUresult error) {
    if (reply.is_pending()) return reply.answer(error);
    session.channel().set_async_error(error);
  }

  // What CheckedMemory does not let through.
  void refuse(const Refusal& refusal) {
    if (refusal.malformed != nullptr) return malformed(refusal.malformed);
    if (refusal) reject(refusal.result);
  }
  [[nodiscard]] CheckedMemory checked() const { return CheckedMemory(session); }

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
  // The header's stream, by the same rule.
  [[nodiscard]] StreamQueue* stream();
  // A fence in a stream that could not be created is reached at once: nothing is in front of it, and the client waits for it.
  void write_fence_of_missing_stream(std::uint32_t value);
  [[nodiscard]] std::string text() const { return {reinterpret_cast<const char*>(trailing.data()), trailing.size()}; }
  [[nodiscard]] SharedReply share_reply() { return std::make_shared<Reply>(std::move(reply)); }
};

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
#define MPSSHIM_RECORD(enumerator, structure) void handle(Incoming& incoming, const proto::structure& record);
#include "gen/record_names.inc"
#undef MPSSHIM_RECORD

}  // namespace mpsshim::broker
