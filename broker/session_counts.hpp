// SPDX-License-Identifier: Apache-2.0
// What is counted of each session for those who look at the service (docs/seeing.md): memory of the control process that all its executors map, and
// no client. A session keeps its row from one executor to the next, so nothing is lost or counted twice when one dies or a session moves; only one
// executor has a session at a time. Where newcomers go is decided by these numbers (Spread), and nothing else.
// The control process gives rows out (SessionCountsStore), and clears one before it does; the executor finds a session's row by its number.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace mpsshim::broker {

struct SessionCounts {
  alignas(
      64) std::atomic<std::uint64_t> session;  // whose it is; 0: nobody's. Written by the control process before the executor hears of the session
  std::atomic<std::uint64_t> gpu_ns;           // time with work under way, written by the fault watch (BusyTime)
  alignas(64) std::atomic<std::uint64_t> launches;  // handed to the driver, written by the session's worker: in a line of its own
  alignas(64) std::atomic<std::uint64_t> waits;     // of client's threads for the GPU, asleep or awake, written by the completion thread
  std::atomic<std::uint64_t> wait_ns;               // time in which at least one slept, and what the client says of those awake; the same
};
static_assert(sizeof(SessionCounts) == 192);

inline constexpr std::uint32_t kCountedSessions = 1024;  // twice as many as there may be leases: those that end have theirs a while longer

struct SessionCountsFile {
  SessionCounts row[kCountedSessions];  // row 0 is nobody's
};

// For an executor. Where there is no file, or no row, what is counted goes to a row that nobody reads.
class SessionCountsView {
 public:
  explicit SessionCountsView(SessionCountsFile* file) : file_(file) {}
  SessionCountsView(const SessionCountsView&) = delete;

  [[nodiscard]] std::uint32_t index_of(std::uint64_t session) const {  // 0: it is not counted
    if (file_ == nullptr || session == 0) return 0;
    const auto* const found = std::find_if(file_->row + 1, file_->row + kCountedSessions,
                                           [session](const SessionCounts& row) { return row.session.load(std::memory_order_acquire) == session; });
    return found == file_->row + kCountedSessions ? 0 : static_cast<std::uint32_t>(found - file_->row);
  }
  [[nodiscard]] SessionCounts& operator[](std::uint32_t index) { return file_ == nullptr || index >= kCountedSessions ? spare_ : file_->row[index]; }

 private:
  SessionCountsFile* const file_;
  SessionCounts spare_{};
};

}  // namespace mpsshim::broker
