// SPDX-License-Identifier: Apache-2.0
// Layout of the memory that one client process and one executor share. The control process makes the memory file, seals its size and maps
// the first page; client and executor map all of it. A channel serves one epoch: after an executor was replaced the client gets a new one.
//
//   page 0      ChannelHeader
//   page 1      FenceWaiter[kFenceWaiters]
//   then        reply slots, kReplySlots of kReplySlotBytes
//   then        command ring, kRingBytes (mapped twice back to back by each side, so no record wraps)
//
// Fences are a segment of their own, written by the GPU (see FenceWord).
// Trust: the client may write all of this at any time. The executor keeps private copies of what it decides by (its ring position, the
// sessions' objects); a client that scribbles here hurts itself alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "proto/version.hpp"

namespace mpsshim::proto {

inline constexpr std::uint64_t kChannelMagic = 0x3130'6d69'6873'706dull;  // "mpshim01", little endian

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kRingBytes = 1u << 20;
inline constexpr std::uint32_t kReplySlots = 32;
inline constexpr std::size_t kReplySlotBytes = 16 * 1024;
inline constexpr std::uint32_t kFenceWaiters = 64;
inline constexpr std::uint32_t kFenceWords = 1024;  // one a stream; so many streams can a client have

// Why a session came to an end or moved; kept in ChannelHeader::session_state.
enum class SessionState : std::uint32_t {
  active = 0,
  moved = 1,     // the executor was replaced; ask the control process for a new channel (epoch)
  failed = 2,    // session_error is this process's sticky error from now on
  on_trial = 3,  // its work is lost, and what it was may tell who has caused a fault (docs/recovery.md, "Trials"); then it has failed
};

struct alignas(64) ChannelHeader {
  std::uint64_t magic;
  std::uint32_t layout_major;
  std::uint32_t layout_minor;  // what client and executor speak: the client's
  std::uint64_t epoch;
  std::uint64_t session;

  alignas(64) std::atomic<std::uint64_t> tail;             // bytes ever written; client stores, executor loads
  alignas(64) std::atomic<std::uint64_t> head;             // bytes ever consumed; executor stores, client loads
  alignas(64) std::atomic<std::uint32_t> consumer_idle;    // 1: executor sleeps, the next record needs the doorbell
  std::atomic<std::uint32_t> producer_waiting;             // 1: a client thread sleeps on `head_futex` for room
  std::atomic<std::uint32_t> head_futex;
  alignas(64) std::atomic<std::uint32_t> session_state;    // SessionState; executor or control store, client loads
  std::atomic<std::uint32_t> session_error;                // CUresult, with SessionState::failed
  alignas(64) std::atomic<std::uint32_t> async_error;      // CUresult of a failed post; client takes it (exchange with 0), executor sets it if 0
  std::atomic<std::uint32_t> lost_work;                    // CUresult of accepted work that the driver refused: it stays; executor stores it before
                                                           // async_error, client loads it after
  std::atomic<std::uint32_t> output_waiting;               // 1: the control process has text of kernels (OutputTake); control stores, client loads
  std::atomic<std::uint32_t> thread_percentage;            // changed to since Attached told it; 0: it was not. Control stores, client loads
  std::atomic<std::uint32_t> awake_us;  // so long a wait for the GPU may stay awake on a core that nobody wants. Executor stores, client loads
  alignas(64) std::atomic<std::uint32_t> waiters_armed;    // counts armings; the completion thread looks again when it moved
  alignas(64) std::atomic<std::uint64_t> awake_waits;      // waits for the GPU that ended before their thread slept, but not at once; client adds
  std::atomic<std::uint64_t> awake_wait_ns;                // how long threads have waited so, also those that slept behind it; client adds
};
static_assert(sizeof(ChannelHeader) <= kPageBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

// A client thread that stops spinning on a fence claims one of these, arms it, rings the completion doorbell and sleeps on `state`.
struct alignas(64) FenceWaiter {
  enum State : std::uint32_t { free = 0, claimed = 1, armed = 2, fired = 3 };
  std::atomic<std::uint32_t> state;  // client: free -> claimed -> armed, and -> free in the end; executor: armed -> fired (then futex wake)
  std::uint32_t fence;               // index into the fence segment; written before `armed` is stored
  std::uint32_t target;              // fired once fence_reached(word, target)
};
static_assert(sizeof(FenceWaiter) * kFenceWaiters <= kPageBytes);

struct ReplySlot {
  enum State : std::uint32_t { idle = 0, pending = 1, sleeping = 2, done = 3 };
  std::atomic<std::uint32_t> state;  // client: idle -> pending (-> sleeping), done -> idle; executor: exchange to done, futex wake if it was sleeping
  std::uint32_t status;              // CUresult
  std::uint32_t size_bytes;          // of payload
  std::uint32_t sequence;            // of the record answered
};
static_assert(sizeof(ReplySlot) == 16);
inline constexpr std::size_t kMaxReplyBytes = kReplySlotBytes - sizeof(ReplySlot);

// `value` is written by the GPU, in stream order, and read by the client. `host_value` goes the other way: the client stores it and rings the
// doorbell, the executor loads it (host functions). Both count up and may wrap.
struct alignas(64) FenceWord {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> host_value;  // the last host function of the stream that has returned
  std::atomic<std::uint32_t> kernel_error;  // of kKernelErrorWord alone: CUresult of a kernel of the client that has failed and hurt nobody else,
                                            // written by it, so before any fence behind it. It stays
  // Fences of event records may be *owed*: written behind later work only, unless the client wants them (docs/execution.md, "Owed fences").
  std::atomic<std::uint32_t> owed;     // executor: the last of them, stored before its record is issued; 0: there was none
  std::atomic<std::uint32_t> wanted;   // client: the latest that it has looked for in vain; 0: none
  std::atomic<std::uint32_t> asks;     // client: counts up, whether the work of what is owed has ended. 1 before its first fence; a library that
                                       // leaves it at 0 does not know of this, and is never owed anything
  std::atomic<std::uint32_t> answers;  // executor: the last ask since which it has looked; fences that it found are in `value` before
};
static_assert(sizeof(FenceWord) == 64);

// The last one: few clients have so many streams, so looking there costs nothing.
inline constexpr std::uint32_t kKernelErrorWord = kFenceWords - 1;

constexpr bool fence_reached(std::uint32_t word, std::uint32_t target) { return static_cast<std::int32_t>(word - target) >= 0; }
static_assert(fence_reached(5, 5) && fence_reached(3, 0xfffffff0u) && !fence_reached(4, 5));

inline constexpr std::size_t kFenceWaiterOffset = kPageBytes;
inline constexpr std::size_t kReplyOffset = 2 * kPageBytes;
inline constexpr std::size_t kRingOffset = kReplyOffset + kReplySlots * kReplySlotBytes;
inline constexpr std::size_t kChannelBytes = kRingOffset + kRingBytes;
inline constexpr std::size_t kFenceSegmentBytes = kFenceWords * sizeof(FenceWord);
static_assert(kRingOffset % kPageBytes == 0 && kRingBytes % kPageBytes == 0);

}  // namespace mpsshim::proto
