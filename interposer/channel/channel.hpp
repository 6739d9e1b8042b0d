// SPDX-License-Identifier: Apache-2.0
// What the rest of the interposer sees of the ring: `post` (a record without an answer) and `call` (one with an answer). One Channel serves
// this process and its executor; records of all threads form one total order under a short lock. Epochs change underneath (Link); a
// record posted before an executor was replaced and not yet read by it is carried over, so callers need not know.
//
// Any thread. Neither function hangs: a broker that is gone or a failed session gives the session's sticky error (Guardian::fail).
// What must be decided in the order of the records (fence values, recipes) is decided inside `fill`, which runs under the lock. Longer than other
// headers because what is made for each record is templates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "gen/cuda_api.hpp"
#include "gen/records.hpp"
#include "interposer/channel/link.hpp"
#include "interposer/channel/lock.hpp"
#include "interposer/channel/wait.hpp"
#include "proto/mutex.hpp"
#include "proto/post_arrow.hpp"
#include "proto/record.hpp"

namespace mpsshim::interposer {

// Where a record lies; positions count bytes since its epoch began.
struct Place {
  std::uint64_t epoch = 0;
  std::uint64_t position = 0;
};

// May the executor be asked again if it died between reading the record and answering it?
enum class Repeat : std::uint8_t { never, harmless };

// A record in parts, as `call` and recovery write it.
struct RecordParts {
  proto::RecordId id{};
  proto::StreamId stream;
  std::span<const std::byte> body;
  std::span<const std::byte> trailing;
};

struct Answer {
  CUresult status = CUDA_SUCCESS;
  std::uint64_t epoch = 0;         // of the executor that answered
  std::vector<std::byte> payload;  // reply structure, then its trailing bytes
};

class Channel {
 public:
  // The session behind the channel: what to do when waiting or writing finds that it moved or failed.
  class Guardian {
   public:
    // Brings the session back after `epoch` has ended; CUDA_SUCCESS: another link is in place. One thread does it, others wait inside.
    virtual CUresult recover(std::uint64_t epoch) = 0;
    // Makes `error` sticky for the process (the first one wins) and returns the sticky error.
    virtual CUresult fail(CUresult error) = 0;

    // CUDA_SUCCESS, or the sticky error, where a kernel of this process has failed by itself (proto::FenceWord::kernel_error).
    virtual CUresult look_for_kernel_error() = 0;

    // A session of the process on another device has moved, whose work may be waited for; takes such along.
    [[nodiscard]] virtual bool has_other_moved() const { return false; }
    virtual void follow_others() const {}

   protected:
    ~Guardian() = default;
  };

  Channel(Guardian& guardian, PeerWatch peer) : guardian_(guardian), peer_(peer) {}

  // A post. `fill(Record& body, std::byte* trailing, Place place)` runs under the lock, before the record is visible; it may run again if
  // it throws or the ring was full before it ran, never twice for one record.
  template <typename Record, typename Fill>
  [[nodiscard]] CUresult post(proto::StreamId stream, std::size_t trailing_bytes, Fill&& fill) {
    static_assert(!Record::kIsCall);
    const std::uint32_t size = proto::record_size(Record::kBodyBytes, trailing_bytes);
    if (size > proto::kMaxRecordBytes) return CUDA_ERROR_INVALID_VALUE;
    for (;;) {
      std::unique_lock lock(lock_);
      Link& link = *link_;
      std::byte* at = is_active(link) ? link.producer().reserve(size) : nullptr;
      if (at == nullptr) [[unlikely]] {
        const auto [blocked, end] = make_way(size);
        lock.unlock();
        if (const CUresult error = go_on(end, *blocked); error != CUDA_SUCCESS) return error;
        continue;
      }
      write_header(at, size, Record::kId, proto::kNoReplySlot, link, trailing_bytes, stream);
      Record* body = new (at + sizeof(proto::RecordHeader)) Record{};
      fill(*body, at + sizeof(proto::RecordHeader) + Record::kBodyBytes, Place{link.epoch(), link.producer().position()});
      if (proto::has_arrow(Record::kId) && proto::trace::enabled()) [[unlikely]]
        link.draw_arrow();
      if (link.producer().publish(size)) link.wake_executor();  // the executor goes on with it in Worker::read_ring
      return CUDA_SUCCESS;
    }
  }
  template <typename Record>
  [[nodiscard]] CUresult post(proto::StreamId stream, const Record& record, std::span<const std::byte> trailing = {}) {
    return post<Record>(stream, trailing.size(), [&](Record& body, std::byte* behind, Place) {
      body = record;
      if (!trailing.empty()) std::memcpy(behind, trailing.data(), trailing.size());
    });
  }

  // A call: returns the executor's status, or the session's error. `reply` is filled on CUDA_SUCCESS; `answer`, where given, holds all bytes.
  template <typename Record, typename Reply>
  [[nodiscard]] CUresult call(proto::StreamId stream, const Record& record, std::span<const std::byte> trailing, Reply& reply,
                              Answer* answer = nullptr) {
    static_assert(Record::kIsCall);
    Answer own;
    Answer& used = answer != nullptr ? *answer : own;
    const auto body = std::as_bytes(std::span(&record, 1)).first(Record::kBodyBytes);
    constexpr Repeat kRepeat = Record::kMayRepeat ? Repeat::harmless : Repeat::never;
    if (const CUresult error = exchange(RecordParts{Record::kId, stream, body, trailing}, kRepeat, used); error != CUDA_SUCCESS) return error;
    if (used.status != CUDA_SUCCESS) return used.status;
    if (used.payload.size() < Reply::kBodyBytes) return guardian_.fail(CUDA_ERROR_MPS_RPC_FAILURE);
    if (Reply::kBodyBytes != 0) std::memcpy(&reply, used.payload.data(), Reply::kBodyBytes);
    return CUDA_SUCCESS;
  }

  // The part of `call` that knows no types. The result is the transport's; the executor's status is in `answer`.
  [[nodiscard]] CUresult exchange(const RecordParts& parts, Repeat repeat, Answer& answer);

  // For recovery and the first attach. The new link is used from now on.
  void set_link(std::shared_ptr<Link> link);
  // Never waits for a writer, who may be waiting for room that only the caller makes (a host function that has returned).
  [[nodiscard]] std::shared_ptr<Link> link();
  // The same once whoever was writing has written: for recovery.
  [[nodiscard]] std::shared_ptr<Link> link_behind_writers();
  // Runs f(Link&) under the lock: what it decides is in the order of the records.
  template <typename F>
  auto locked(F&& f) {
    const std::lock_guard lock(lock_);
    return f(*link_);
  }

  [[nodiscard]] PeerWatch peer() const { return peer_; }
  // Turns the end of a wait in `link` into what to do: CUDA_SUCCESS, look again (it was ready, or the session is back).
  [[nodiscard]] CUresult settle(WaitEnd end, Link& link);

  // Pieces that recovery uses on a link of its own: write without lock (false while there is no room), take an answer out of its slot.
  [[nodiscard]] static bool write(Link& link, const RecordParts& parts, std::uint16_t reply_slot);
  static void take_answer(Link& link, std::uint32_t slot, Answer& answer);

  [[nodiscard]] static bool is_active(Link& link) {
    return link.header().session_state.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(proto::SessionState::active);
  }

 private:
  struct Pending {
    std::shared_ptr<Link> link;
    std::uint32_t slot = 0;
    std::uint64_t position = 0;
  };

  static void write_header(std::byte* at, std::uint32_t size, proto::RecordId id, std::uint16_t slot, Link& link, std::size_t trailing,
                           proto::StreamId stream) {
    new (at) proto::RecordHeader{size,  static_cast<std::uint16_t>(id), slot, link.producer().next_sequence(), static_cast<std::uint32_t>(trailing),
                                 stream};
  }
  // The record did not fit or the session is not active: waits for room, with the lock, which keeps the order of the waiting threads' records.
  // What came of it is settled without the lock (go_on), then the caller tries again. There may be no room before another session's work is done.
  [[nodiscard]] std::pair<std::shared_ptr<Link>, WaitEnd> make_way(std::uint32_t size) REQUIRES(lock_);
  [[nodiscard]] CUresult go_on(WaitEnd end, Link& link);
  [[nodiscard]] CUresult post_call(const RecordParts& parts, Pending& pending);
  [[nodiscard]] CUresult claim_slot(Pending& pending);

  Guardian& guardian_;
  PeerWatch peer_;
  ChannelLock lock_;
  Mutex link_mutex_;
  std::shared_ptr<Link> link_;  // changed under lock_ and link_mutex_, read under either: no GUARDED_BY says that
};

}  // namespace mpsshim::interposer
