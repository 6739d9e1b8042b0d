// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/context/session_times.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include <unistd.h>

#include "broker/executor/link/control_link.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

constexpr double kNsPerMs = 1e6;

// Nanoseconds from `start` to `end`. The driver answers in float: close to each other they are exact to its resolution.
CUresult elapsed_ns(const Driver& driver, CUevent start, CUevent end, double& ns) {
  float milliseconds = 0;
  const CUresult result = driver->cuEventElapsedTime(&milliseconds, start, end);
  ns = static_cast<double>(milliseconds) * kNsPerMs;
  return result;
}

}  // namespace

std::vector<EventTime> read_event_times(const Driver& driver, const TimeBase& base, const std::vector<RecordedEvent>& events) {
  struct Coarse {
    const RecordedEvent* event;
    double ns;
  };
  std::vector<Coarse> order;
  if (!base.point) return {};
  for (const RecordedEvent& event : events) {
    double ns = 0;
    if (elapsed_ns(driver, base.point->handle, event.point->handle, ns) == CUDA_SUCCESS) order.push_back({&event, ns});
  }
  // From the base backwards, step by step: an hour in float is exact to a quarter of a millisecond.
  std::ranges::stable_sort(order, std::greater<>(), &Coarse::ns);
  std::vector<EventTime> times;
  CUevent last = base.point->handle;
  double at = 0;
  for (const Coarse& entry : order) {
    double step = 0;
    const CUevent event = entry.event->point->handle;
    if (elapsed_ns(driver, last, event, step) != CUDA_SUCCESS) continue;
    at += step;
    last = event;
    times.push_back({entry.event->id.value, base.host_ns + std::llround(at)});
  }
  return times;
}

bool SessionTimes::adopt(const proto::FileDescriptor& file) {
  EventTimesHeader header;
  if (pread(file.get(), &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) return false;
  const std::uint64_t size = proto::sealed_size(file).value_or(0);
  if (size < sizeof header || header.count > (size - sizeof header) / sizeof(EventTime)) return false;
  std::vector<EventTime> times(header.count);
  const auto bytes = static_cast<ssize_t>(times.size() * sizeof(EventTime));
  if (pread(file.get(), times.data(), static_cast<std::size_t>(bytes), sizeof header) != bytes) return false;
  for (const EventTime& time : times) kept_[time.event] = time.host_ns;
  return true;
}

std::optional<std::int64_t> SessionTimes::take(proto::EventId event) {
  const auto found = kept_.extract(event.value);
  return found.empty() ? std::nullopt : std::optional(found.mapped());
}

CUresult SessionTimes::at(const EventPoint& point, std::int64_t& host_ns) const {
  if (!base_.point) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  double ns = 0;
  const CUresult result = elapsed_ns(driver_, base_.point->handle, point.handle, ns);
  host_ns = base_.host_ns + std::llround(ns);
  return result;
}

void send_event_times(ControlLink& control, std::uint64_t session, const std::vector<EventTime>& times) {
  const EventTimesHeader header{times.size()};
  const std::size_t bytes = times.size() * sizeof(EventTime);
  const proto::FileDescriptor file = proto::create_memory_file("mpsshim-event-times", sizeof header + bytes);
  const bool is_written = file.valid() && pwrite(file.get(), &header, sizeof header, 0) == static_cast<ssize_t>(sizeof header) &&
                          pwrite(file.get(), times.data(), bytes, sizeof header) == static_cast<ssize_t>(bytes);
  if (!is_written || !proto::seal(file, proto::Seal::content)) {
    return log_warning("Session {}: the times of its {} recorded events cannot be taken along. Free memory.", session, times.size());
  }
  control.send({message::EventTimes{.session = session}, {.times = file.get()}});
}

}  // namespace mpsshim::broker
