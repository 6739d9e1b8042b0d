// SPDX-License-Identifier: Apache-2.0
// Events of one client that others use (cuIpcGetEventHandle): slots in a segment of purpose `events`, which each of them maps and has registered
// with its executor. So such an event is known to any executor, and outlives them.
//
// A record takes the next number; its stream writes that number into the word number % kRecords once the work before it is done. The event is
// complete when the word of its last number has been reached; a stream that waits is held back until its executor sees that. Whoever records waits
// until the word is free of the number that was there kRecords before. If a session ends whose records are not complete, the control process
// completes them, so that nobody waits for ever, and says so in `abandoned`. All of it is advice between clients who have given each other the name:
// nobody else relies on it.
#pragma once

#include <atomic>
#include <cstdint>

namespace mpsshim::proto {

struct SharedEventSlot {
  static constexpr std::uint32_t kRecords = 16;

  std::atomic<std::uint32_t> generation{0};  // goes up when the event ends
  std::atomic<std::uint32_t> recorded{0};    // the last number, of whichever event has had the slot; 0: none has been recorded
  std::uint32_t reserved[14] = {};
  std::atomic<std::uint32_t> completed[kRecords] = {};  // written by the GPU
  std::atomic<std::uint32_t> abandoned[kRecords] = {};
  std::atomic<std::uint64_t> recorder[kRecords] = {};  // the session whose record it is
};
static_assert(sizeof(SharedEventSlot) == 320);

inline constexpr std::uint64_t kSharedEventBytes = 64u << 10;  // of a segment
inline constexpr std::uint32_t kSharedEventSlots = kSharedEventBytes / sizeof(SharedEventSlot);

// Numbers wrap.
[[nodiscard]] inline bool is_reached(std::uint32_t word, std::uint32_t number) { return static_cast<std::int32_t>(word - number) >= 0; }

}  // namespace mpsshim::proto
