// SPDX-License-Identifier: Apache-2.0
// Makes the file of SessionCounts, and gives its rows out: one to each session, from its beginning to its end. Where there is no file or no row left
// the session is served all the same, and what it does is not known.
// Owned by SessionTable; the control process's thread. Executors write to the rows, and are trusted with numbers that
// decide where newcomers go (Spread), and nothing else.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "broker/session_counts.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker::control {

class SessionCountsStore {
 public:
  struct Values {
    std::uint64_t gpu_ns = 0;
    std::uint64_t launches = 0;
    std::uint64_t waits = 0;
    std::uint64_t wait_ns = 0;
  };
  // A session's row, which goes back with it.
  class Row {
   public:
    Row() = default;
    Row(Row&& other) noexcept : store_(std::exchange(other.store_, nullptr)), index_(other.index_) {}
    Row& operator=(Row&& other) noexcept;
    ~Row() { reset(); }
    [[nodiscard]] std::optional<Values> read() const;  // nothing: it is not counted
    void set(const Values& values);                    // before any executor has the session

   private:
    friend class SessionCountsStore;
    Row(SessionCountsStore* store, std::uint32_t index) : store_(store), index_(index) {}
    void reset();
    SessionCountsStore* store_ = nullptr;
    std::uint32_t index_ = 0;
  };

  SessionCountsStore();
  SessionCountsStore(const SessionCountsStore&) = delete;

  [[nodiscard]] int file() const { return memory_ ? file_.get() : -1; }
  [[nodiscard]] Row take(std::uint64_t session);

 private:
  [[nodiscard]] SessionCounts& row(std::uint32_t index) { return reinterpret_cast<SessionCountsFile*>(memory_.data())->row[index]; }

  proto::FileDescriptor file_;
  proto::Mapping memory_;
  std::deque<std::uint32_t> free_;  // the one that has been free longest first: a late word of an executor goes to nobody
};

}  // namespace mpsshim::broker::control
