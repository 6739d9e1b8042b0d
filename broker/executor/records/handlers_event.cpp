// SPDX-License-Identifier: Apache-2.0
// Events. A session's event is a name; what is recorded and waited for are points (event_pool.hpp).
#include <utility>

#include "broker/executor/records/dispatch.hpp"

namespace mpsshim::broker {

namespace {

// By the host's clock.
CUresult time_of(const SessionTimes& times, const SessionEvent& event, std::int64_t& host_ns) {
  if (event.last) return event.last->is_issued ? times.at(*event.last, host_ns) : CUDA_ERROR_NOT_READY;
  // A client asks for events that it has recorded: that was in an earlier executor, which has taken the time along.
  if (!event.kept_ns) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  host_ns = *event.kept_ns;
  return CUDA_SUCCESS;
}

CUresult elapsed(Session& session, const SessionEvent& start, const SessionEvent& end, float& milliseconds) {
  if (start.last && end.last) {
    if (!start.last->is_issued || !end.last->is_issued) return CUDA_ERROR_NOT_READY;
    return session.parts().driver->cuEventElapsedTime(&milliseconds, start.last->handle, end.last->handle);
  }
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  CUresult result = time_of(session.times(), start, start_ns);
  if (result == CUDA_SUCCESS) result = time_of(session.times(), end, end_ns);
  milliseconds = static_cast<float>(static_cast<double>(end_ns - start_ns) / 1e6);
  return result;
}

}  // namespace

void handle(SessionPost& incoming, const proto::EventCreateRecord& record) {
  auto event = std::make_unique<SessionEvent>();
  event->kept_ns = incoming.session.times().take(record.event);
  event->has_timing = (record.flags & CU_EVENT_DISABLE_TIMING) == 0;
  if (!incoming.session.events().insert(record.event, std::move(event))) incoming.malformed("its event id is in use or out of range");
}

void handle(SessionPost& incoming, const proto::EventDestroyRecord& record) {
  if (incoming.find(incoming.session.events(), record.event)) (void)incoming.session.events().take(record.event);
}

void handle(StreamPost& incoming, const proto::EventRecordRecord& record) {
  RecordOp op{nullptr, true, record.fence_value};
  if (const proto::Known<SessionEvent> event = incoming.find(incoming.session.events(), record.event)) {
    // The point is used again unless a queued wait or record still means the earlier one, or it is a graph's.
    if (!event->last || event->last.use_count() > 1 || event->last->lender) {
      const CUresult result = incoming.session.parts().events.take(event->has_timing, event->last);
      if (incoming.session.context().check(result, "cuEventCreate") != CUDA_SUCCESS) event->last = nullptr;
    }
    if (event->last) event->last->is_issued = false;
    op.point = event->last;
  }
  // Without an event the fence is written all the same: the client waits for it.
  if (incoming.session.is_reading()) incoming.append(std::move(op));
}

void handle(StreamPost& incoming, const proto::StreamWaitEventRecord& record) {
  const proto::Known<SessionEvent> event = incoming.find(incoming.session.events(), record.event);
  if (!event || !event->last) return;
  incoming.append(WaitOp{event->last});
}

void handle(StreamPost& incoming, const proto::StreamJoinRecord& record) {
  StreamSet& streams = incoming.session.streams();
  if (record.waits) streams.order_behind_all(incoming.queue);
  if (record.precedes) streams.order_all_behind(incoming.queue);
}

void handle(SessionCall& incoming, const proto::EventElapsedRecord& record) {
  Session& session = incoming.session;
  const proto::Known<SessionEvent> start = incoming.find(session.events(), record.start);
  if (!start) return;
  const proto::Known<SessionEvent> end = incoming.find(session.events(), record.end);
  if (!end) return;
  if (!start->has_timing || !end->has_timing) return incoming.reject(CUDA_ERROR_INVALID_HANDLE);
  proto::EventElapsedReply reply{};
  const CUresult result = elapsed(session, *start, *end, reply.milliseconds);
  incoming.answer_with(session.parts().faults.check(result, session.id(), "cuEventElapsedTime"), reply);
}

}  // namespace mpsshim::broker
