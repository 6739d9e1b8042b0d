// SPDX-License-Identifier: Apache-2.0
// Copies the variables of sessions to where they outlive this executor, once nothing that may write to them is under way: on a stream of its own,
// one session at a time, so no client ever waits for it. What costs little (a counter) is copied at the first look that finds it so, at most every
// kInterval; where the session writes on while it is copied, more rarely, up to kLongestInterval, but in any case once it has rested for
// kLongRest. For what is larger all of these times are longer, so that copies take no more than a tenth of the time.
//
// turn() is called by FaultWatch's thread, which looks at the progress table anyway; add() and remove() by workers. No call of it waits for the
// GPU.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "broker/executor/base/issue_lock.hpp"
#include "broker/executor/base/progress.hpp"
#include "broker/executor/link/fault.hpp"
#include "broker/executor/modules/session_variables.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class VariableKeeper {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kLook{50};  // until a session whose variables are out of date is looked at again
  static constexpr std::chrono::milliseconds kInterval{1};
  static constexpr std::chrono::milliseconds kLongestInterval{50};
  static constexpr std::chrono::milliseconds kLongRest{3};  // without a change: worth a copy in any case
  static constexpr std::size_t kLooksPerTurn = 16;          // of many sessions, the next ones in turn
  static constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
  static constexpr std::size_t kCheapBytes = std::size_t{64} << 10;
  static constexpr std::chrono::microseconds kRoundTrip{20};  // a copy of a counter that is done by then has kept nobody waiting
  static constexpr std::size_t kBytesPerMicrosecond = 5'000;  // that are copied, and put into the file

  VariableKeeper(const Driver& driver, const FaultReporter& faults, const Progress& progress, IssueLock& issue_lock)
      : driver_(driver), faults_(faults), progress_(progress), issue_lock_(issue_lock) {}
  VariableKeeper(const VariableKeeper&) = delete;

  // The stream and the buffer, which the first copy would otherwise make. False: refused, which is logged once; variables are not kept then.
  bool open();
  void add(std::shared_ptr<SessionVariables> variables);  // without effect where it has them
  void remove(std::uint64_t session);

  // Does what is due. True while variables are out of date and nothing that may write to them is under way: call again soon.
  [[nodiscard]] bool turn(Clock::time_point now);

 private:
  struct Entry {
    std::shared_ptr<SessionVariables> variables;
    Clock::time_point look{};        // the next one
    Clock::time_point due{};         // the next copy, where there is no long rest
    unsigned overtaken = 0;          // copies in a row
    std::uint64_t changes = 0;       // seen by the last look
    Clock::time_point rest_since{};  // nothing that may write is under way, and as many changes
    bool is_halfway = false;         // the last copy was not all
    bool is_waiting = false;         // for no more than its turn: it has written
  };
  struct UnderWay {
    std::shared_ptr<SessionVariables> variables;
    SessionVariables::Copies copies;
  };

  [[nodiscard]] bool has_written(const SessionVariables& variables) const;
  // Looks at a session whose variables are out of date: whether now is the time.
  [[nodiscard]] bool is_time(Entry& entry, Clock::time_point now);
  void begin(Entry& entry) REQUIRES(mutex_);
  [[nodiscard]] CUresult copy(const SessionVariables::Piece& piece) REQUIRES(mutex_);
  void finish(Clock::time_point now) REQUIRES(mutex_);
  void await_cheap_copy(Clock::time_point now) REQUIRES(mutex_);

  const Driver& driver_;
  const FaultReporter& faults_;
  const Progress& progress_;
  IssueLock& issue_lock_;
  CUstream stream_ = nullptr;
  void* buffer_ = nullptr;  // pinned, kBufferBytes
  bool is_refused_ = false;
  std::optional<UnderWay> under_way_ GUARDED_BY(mutex_);
  Mutex mutex_;
  std::vector<Entry> entries_ GUARDED_BY(mutex_);
  std::size_t next_ GUARDED_BY(mutex_) = 0;
};

}  // namespace mpsshim::broker
