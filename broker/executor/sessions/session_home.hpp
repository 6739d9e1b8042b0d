// SPDX-License-Identifier: Apache-2.0
// A session's home: the worker it is with while it waits after every few launches (worker_placement.hpp), and in whose context its streams are then
// (side_context.hpp). The first worker's is the executor's own. Streams go there one by one, as they are idle.
// The session's worker only.
#pragma once

#include <chrono>

#include "broker/executor/context/parts.hpp"
#include "broker/executor/streams/stream_set.hpp"

namespace mpsshim::broker {

class SessionHome {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kWaitingCounts{2};  // so long: who pauses for a moment is about to go on

  SessionHome(StreamSet& streams, const ExecutorParts& parts) : streams_(streams), parts_(parts) {}

  [[nodiscard]] unsigned worker() const { return worker_; }
  void change_to(unsigned worker);
  // Few streams, and not within a second: what a session seems to do in a few milliseconds is no reason to send it to and fro.
  [[nodiscard]] bool may_change(Clock::time_point now) const;
  [[nodiscard]] bool has_few_streams() const;
  // Waits often, or has not long ago.
  [[nodiscard]] bool has_waited(Clock::time_point now) const;
  // Now and then: whether it waits often at the moment. One that has not for a while has the first worker's home again, so that its streams aside
  // are for others. Those that have been made since it came are looked for.
  void note_waiting(bool waits_often, Clock::time_point now);

  [[nodiscard]] bool has_streams_to_move() const { return moves_left_ > 0; }
  void move_streams();

 private:
  StreamSet& streams_;
  const ExecutorParts& parts_;
  unsigned worker_ = 0;
  Clock::time_point since_{};
  Clock::time_point waited_{};      // seen to wait often then
  unsigned moves_left_ = 0;         // attempts
  bool has_streams_aside_ = false;  // or may have
};

}  // namespace mpsshim::broker
