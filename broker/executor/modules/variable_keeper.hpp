// SPDX-License-Identifier: Apache-2.0
// Copies the variables of sessions that have become idle to where they outlive this executor. On a stream of its own, one session at a time: no
// client ever waits for it. A session that has been at rest for a moment is copied, at most every kInterval, and more rarely where it keeps going
// on meanwhile; one that has been at rest for kLongRest is copied whatever came before, so it is never out of date for long.
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
  static constexpr std::chrono::milliseconds kInterval{50};
  static constexpr std::chrono::milliseconds kLongestInterval{1000};
  static constexpr std::chrono::milliseconds kLook{5};       // until a session that was at work is looked at again
  static constexpr std::chrono::milliseconds kShortRest{4};  // without work or a change: worth a copy, if one is due
  static constexpr std::chrono::milliseconds kLongRest{30};  // worth one in any case
  static constexpr std::size_t kLooksPerTurn = 16;           // of many sessions, the next ones in turn

  VariableKeeper(const Driver& driver, const FaultReporter& faults, const Progress& progress, IssueLock& issue_lock)
      : driver_(driver), faults_(faults), progress_(progress), issue_lock_(issue_lock) {}
  VariableKeeper(const VariableKeeper&) = delete;

  // The stream and the buffer, which the first copy would otherwise make. False: refused, which is logged once; variables are not kept then.
  bool open();
  void add(std::shared_ptr<SessionVariables> variables);  // without effect where it has them
  void remove(std::uint64_t session);

  // Does what is due. True while a copy is under way: call again soon.
  [[nodiscard]] bool turn(Clock::time_point now);

 private:
  struct Entry {
    std::shared_ptr<SessionVariables> variables;
    Clock::time_point look{};  // the next one
    Clock::time_point due{};   // the next copy
    std::chrono::milliseconds interval{kInterval};
    std::uint64_t changes = 0;       // seen by the last look
    Clock::time_point rest_since{};  // without work, and with as many changes
  };
  struct UnderWay {
    std::shared_ptr<SessionVariables> variables;
    SessionVariables::Copies copies;
  };

  [[nodiscard]] bool is_idle(std::uint64_t session) const;
  // Looks at a session whose variables are out of date: whether now is the time.
  [[nodiscard]] bool is_time(Entry& entry, Clock::time_point now);
  void begin(Entry& entry, Clock::time_point now) REQUIRES(mutex_);
  [[nodiscard]] CUresult copy(const KeptVariable& variable) REQUIRES(mutex_);
  void finish(Clock::time_point now) REQUIRES(mutex_);

  const Driver& driver_;
  const FaultReporter& faults_;
  const Progress& progress_;
  IssueLock& issue_lock_;
  CUstream stream_ = nullptr;
  void* buffer_ = nullptr;  // pinned, kMaxKeptBytes
  bool is_refused_ = false;
  std::optional<UnderWay> under_way_ GUARDED_BY(mutex_);
  Mutex mutex_;
  std::vector<Entry> entries_ GUARDED_BY(mutex_);
  std::size_t next_ GUARDED_BY(mutex_) = 0;
};

}  // namespace mpsshim::broker
