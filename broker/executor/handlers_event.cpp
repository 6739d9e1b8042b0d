// SPDX-License-Identifier: Apache-2.0
// Events. A session's event is a name; what is recorded and waited for are points (event_pool.hpp).
#include <utility>

#include "broker/executor/dispatch.hpp"

namespace mpsshim::broker {

void handle(Incoming& incoming, const proto::EventCreateRecord& record) {
  auto event = std::make_unique<SessionEvent>();
  event->has_timing = (record.flags & CU_EVENT_DISABLE_TIMING) == 0;
  if (!incoming.session.events().insert(record.event, std::move(event))) incoming.malformed("its event id is in use or out of range");
}

void handle(Incoming& incoming, const proto::EventDestroyRecord& record) {
  if (incoming.find(incoming.session.events(), record.event)) (void)incoming.session.events().take(record.event);
}

void handle(Incoming& incoming, const proto::EventRecordRecord& record) {
  StreamQueue* queue = incoming.stream();
  if (queue == nullptr) return incoming.write_fence_of_missing_stream(record.fence_value);
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
  if (incoming.session.is_reading()) incoming.session.streams().append(*queue, std::move(op));
}

void handle(Incoming& incoming, const proto::StreamWaitEventRecord& record) {
  StreamQueue* queue = incoming.stream();
  if (queue == nullptr) return;
  const proto::Known<SessionEvent> event = incoming.find(incoming.session.events(), record.event);
  if (!event || !event->last) return;
  incoming.session.streams().append(*queue, WaitOp{event->last});
}

void handle(Incoming& incoming, const proto::StreamJoinRecord& record) {
  StreamQueue* queue = incoming.stream();
  if (queue == nullptr) return;
  StreamSet& streams = incoming.session.streams();
  if (record.waits != 0) streams.order_behind_all(*queue);
  if (record.precedes != 0) streams.order_all_behind(*queue);
}

void handle(Incoming& incoming, const proto::EventElapsedRecord& record) {
  Session& session = incoming.session;
  const proto::Known<SessionEvent> start = incoming.find(session.events(), record.start);
  if (!start) return;
  const proto::Known<SessionEvent> end = incoming.find(session.events(), record.end);
  if (!end) return;
  if (!start->has_timing || !end->has_timing) return incoming.reject(CUDA_ERROR_INVALID_HANDLE);
  // A client asks for events that it has recorded: that was in an earlier executor, which has taken the time along.
  if (!start->last || !end->last) return incoming.reject(CUDA_ERROR_MPS_SERVER_NOT_READY);
  if (!start->last->is_issued || !end->last->is_issued) return incoming.reject(CUDA_ERROR_NOT_READY);
  proto::EventElapsedReply reply{};
  const CUresult result = session.parts().driver->cuEventElapsedTime(&reply.milliseconds, start->last->handle, end->last->handle);
  incoming.reply.answer_with(session.parts().faults.check(result, session.id(), "cuEventElapsedTime"), reply);
}

}  // namespace mpsshim::broker
