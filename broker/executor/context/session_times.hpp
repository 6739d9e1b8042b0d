// SPDX-License-Identifier: Apache-2.0
// When a session's events were recorded, for the executor that serves it next: the driver's events end with their context, their times do not.
// A session that leaves at rest (Session::pause, rest) has all work behind it: its events' times are read then, go to the control process as a
// file (broker/event_times.hpp) and come back with the session. They are those of the host's clock, which all executors share, tied to the
// GPU's by a *base* (host_clock.hpp). So times of one executor are as exact among themselves as the driver's; between executors they are as
// exact as their bases, some microseconds, and the two clocks' agreement meanwhile.
//
// Threads: adopt() before the first record; take() and at() by the session's worker; read_event_times() by a helper, nothing of the session in
// flight. The file is ours and no client's, and is checked for its form all the same.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "broker/event_times.hpp"
#include "broker/executor/base/host_clock.hpp"
#include "proto/ids.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

class ControlLink;

// An event that was recorded here, all of it completed.
struct RecordedEvent {
  proto::EventId id;
  PointRef point;
};
// In host time, by way of `base`; what the driver does not answer for is left out. Errors do not add up: neighbours in time are compared.
[[nodiscard]] std::vector<EventTime> read_event_times(const Driver& driver, const TimeBase& base, const std::vector<RecordedEvent>& events);

class SessionTimes {
 public:
  explicit SessionTimes(const Driver& driver) : driver_(driver) {}
  SessionTimes(const SessionTimes&) = delete;

  // What earlier executors have read. False: the file has another form.
  [[nodiscard]] bool adopt(const proto::FileDescriptor& file);
  // Ties this executor's times to them.
  void set_base(TimeBase base) { base_ = std::move(base); }

  // The event of that id is made again: its time, if it has one.
  [[nodiscard]] std::optional<std::int64_t> take(proto::EventId event);
  // Of an event that was recorded here. CUDA_ERROR_NOT_READY: it is not complete. CUDA_ERROR_MPS_SERVER_NOT_READY: there is no base.
  [[nodiscard]] CUresult at(const EventPoint& point, std::int64_t& host_ns) const;

 private:
  const Driver& driver_;
  TimeBase base_;
  std::map<std::uint64_t, std::int64_t> kept_;  // by event, until it is made again
};

// To the control process, in a sealed file. Without memory for it they are lost, which is logged.
void send_event_times(ControlLink& control, std::uint64_t session, const std::vector<EventTime>& times);

}  // namespace mpsshim::broker
