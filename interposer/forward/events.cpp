// SPDX-License-Identifier: Apache-2.0
// Event management (CUDA Driver API manual, "Event Management").
#include "interposer/forward/events.hpp"

#include <vector>

#include "gen/api_declarations.hpp"
#include "interposer/forward/graphs/capture.hpp"
#include "interposer/forward/memory/memory_pools.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

Events& Events::instance() {
  return PerSession<Events>::get([] { return new Events(); });
}

CUresult Events::create(std::uint32_t flags, CUcontext context, Event*& event, std::optional<SharedEvent> shared) {
  auto object = std::make_unique<Event>();
  event = object.get();
  event->flags = flags;
  event->context = context;
  event->shared = shared;
  {
    const std::lock_guard lock(mutex_);
    const proto::EventId id = table_.add(std::move(object));
    if (id == proto::EventId{}) return CUDA_ERROR_OUT_OF_MEMORY;  // the table is full, the object gone
    event->id = id;
  }
  return session().channel().post<proto::EventCreateRecord>({}, 0, [&](proto::EventCreateRecord& record, std::byte*, Place place) {
    record.event = event->id;
    record.flags = flags;
    event->recipe = session().recipes().add(recipe_of({}, record, place.position));
  });
}

CUresult Events::destroy(proto::EventId id) {
  const std::lock_guard ending(ending_mutex_);
  const proto::Known<Event> found = table_.find(id);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  Event& event = *found;
  Captures::instance().forget(event);
  if (event.shared) SharedEvents::instance().destroy(*event.shared);
  const CUresult error = session().channel().post<proto::EventDestroyRecord>({}, 0, [&](proto::EventDestroyRecord& record, std::byte*, Place place) {
    record.event = id;
    session().end_recipe(event.recipe, place);
  });
  const std::lock_guard lock(mutex_);
  (void)table_.take(id);
  return error;
}

CUresult Events::record(Event& event, Stream& stream, std::uint32_t flags) {
  if (event.shared) return flags == CU_EVENT_RECORD_DEFAULT ? SharedEvents::record(*event.shared, stream) : CUDA_ERROR_ILLEGAL_STATE;
  if (stream.is_captured.load(std::memory_order_relaxed)) return Captures::instance().record(event, stream, flags == CU_EVENT_RECORD_EXTERNAL);
  Captures::instance().forget(event);
  // Outside a capture CU_EVENT_RECORD_EXTERNAL is refused by the driver.
  if (flags != CU_EVENT_RECORD_DEFAULT) return CUDA_ERROR_ILLEGAL_STATE;
  return post_record(event, stream);
}

CUresult Events::post_record(Event& event, Stream& stream) {
  return session().channel().post<proto::EventRecordRecord>(stream.id, 0, [&](proto::EventRecordRecord& record, std::byte*, Place) {
    record.event = event.id;
    record.flags = CU_EVENT_RECORD_DEFAULT;
    record.fence_value = next_fence(stream);
    event.position.store(Event::pending_at(stream.word, record.fence_value), std::memory_order_release);
  });
}

bool Events::is_complete(Event& event, std::uint64_t position, bool asks) {
  if (position == Event::kNeverRecorded || position == Event::kComplete) return true;
  const auto word = static_cast<std::uint32_t>(position >> 32) % proto::kFenceWords;
  const auto target = static_cast<std::uint32_t>(position);
  if (!(asks ? session().has_ended(word, target) : session().fences().reached(word, target))) return false;
  event.position.compare_exchange_strong(position, Event::kComplete, std::memory_order_relaxed);  // fails if it was recorded anew
  return true;
}

CUresult Events::wait_on_stream(Event& event, Stream& stream, std::uint32_t flags) {
  if (event.shared) return SharedEvents::wait_on_stream(*event.shared, stream);
  if (stream.is_captured.load(std::memory_order_relaxed) || event.is_captured.load(std::memory_order_relaxed)) {
    return Captures::instance().wait(event, stream, flags == CU_EVENT_WAIT_EXTERNAL);
  }
  if (is_complete(event)) return CUDA_SUCCESS;
  return post_work<proto::StreamWaitEventRecord>(stream, 0, [&](proto::StreamWaitEventRecord& record, std::byte*) {
    record.event = event.id;
    record.flags = flags;
  });
}

CUresult Events::synchronize(Event& event) {
  if (event.shared) return SharedEvents::synchronize(*event.shared, (event.flags & CU_EVENT_BLOCKING_SYNC) != 0);
  if (event.is_captured.load(std::memory_order_relaxed)) return Captures::instance().refuse(event);
  const std::uint64_t position = event.position.load(std::memory_order_acquire);
  if (!is_complete(event, position, false)) {
    const auto word = static_cast<std::uint32_t>(position >> 32) % proto::kFenceWords;
    const bool sleeps = (event.flags & CU_EVENT_BLOCKING_SYNC) != 0;
    (void)session().fences().ask(word);  // others of this stream will be waited for as well
    const CUresult error =
        session().wait_fence(word, static_cast<std::uint32_t>(position), "an event", sleeps ? WaitStyle::sleep : Wait::style_of_thread());
    if (error != CUDA_SUCCESS) return error;
  }
  MemoryPools::instance().after_synchronize();
  session().take_output();
  return session().take_error();
}

CUresult Events::query(Event& event) {
  if (event.is_captured.load(std::memory_order_relaxed)) return Captures::instance().refuse(event);
  if (const CUresult error = Captures::instance().check_unsafe_call(); error != CUDA_SUCCESS) return error;
  if (event.shared) return SharedEvents::query(*event.shared);
  if (has_ended(event)) return session().take_error();
  if (const CUresult error = session().look(); error != CUDA_SUCCESS) return error;
  session().follow_others();
  return CUDA_ERROR_NOT_READY;
}

CUresult Events::elapsed(Event& start, Event& end, float* milliseconds) {
  for (Event* event : {&start, &end}) {
    if (event->is_captured.load(std::memory_order_relaxed)) return Captures::instance().refuse(*event);
    if ((event->flags & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
    if (event->position.load(std::memory_order_relaxed) == Event::kNeverRecorded) return CUDA_ERROR_INVALID_HANDLE;
  }
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_HANDLE;  // sic
  if (!has_ended(start) || !has_ended(end)) return CUDA_ERROR_NOT_READY;
  proto::EventElapsedRecord record{};
  record.start = start.id;
  record.end = end.id;
  proto::EventElapsedReply reply{};
  const CUresult error = session().channel().call({}, record, {}, reply);
  if (error == CUDA_SUCCESS) *milliseconds = reply.milliseconds;
  return error;
}

void Events::destroy_all_of(CUcontext context) {
  std::vector<proto::EventId> ended;
  {
    const std::lock_guard lock(mutex_);
    table_.for_each([&](proto::EventId id, const Event& event) {
      if (event.context == context) ended.push_back(id);
    });
  }
  for (const proto::EventId id : ended) (void)destroy(id);
}

}  // namespace mpsshim::interposer::forward

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

template <typename F>
CUresult with_event(CUevent handle, F&& f) {
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  Event* event = Events::instance().resolve(handle);
  return event != nullptr ? f(*event) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult add_event(unsigned int flags, std::optional<SharedEvent> shared, CUevent* handle) {
  Event* event = nullptr;
  const CUresult error = Events::instance().create(flags, owning_context(), event, shared);
  if (error == CUDA_SUCCESS) *handle = to_handle<CUevent>(event->id);
  return error;
}

}  // namespace

CUresult cuEventCreate(CUevent* phEvent, unsigned int Flags) {
  constexpr unsigned int kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (phEvent == nullptr || (Flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool is_shared = (Flags & CU_EVENT_INTERPROCESS) != 0;
  if (is_shared && (Flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  std::optional<SharedEvent> shared;
  if (is_shared) {
    if (const CUresult error = SharedEvents::instance().create(shared.emplace()); error != CUDA_SUCCESS) return error;
  }
  return add_event(Flags, shared, phEvent);
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* pHandle, CUevent event) {
  if (pHandle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  return with_event(event, [&](Event& found) {
    return found.shared && found.shared->is_own ? SharedEvents::instance().name(*found.shared, *pHandle) : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult cuIpcOpenEventHandle(CUevent* phEvent, CUipcEventHandle handle) {
  if (phEvent == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  SharedEvent shared;
  const CUresult error = SharedEvents::instance().open(handle, shared);
  if (error == CUDA_SUCCESS) return add_event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, shared, phEvent);
  if (shared.slot != nullptr) SharedEvents::instance().destroy(shared);  // the page is there, the event is gone
  return error;
}

CUresult cuEventDestroy_v2(CUevent hEvent) {
  return with_event(hEvent, [](const Event& event) { return Events::instance().destroy(event.id); });
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream) { return api::cuEventRecordWithFlags(hEvent, hStream, CU_EVENT_RECORD_DEFAULT); }

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  if (flags != CU_EVENT_RECORD_DEFAULT && flags != CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_on(hStream); error != CUDA_SUCCESS) return error;
  Event* event = Events::instance().resolve(hEvent);
  Stream* stream = Streams::instance().resolve(hStream);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream == nullptr) return Streams::instance().missing(hStream);
  return Events::instance().record(*event, *stream, flags);
}

CUresult cuEventQuery(CUevent hEvent) {
  return with_event(hEvent, [](Event& event) { return Events::instance().query(event); });
}
CUresult cuEventSynchronize(CUevent hEvent) {
  if (are_calls_forbidden()) return CUDA_ERROR_NOT_PERMITTED;  // it might wait for the host function that asks
  return with_event(hEvent, [](Event& event) { return Events::instance().synchronize(event); });
}

CUresult cuEventElapsedTime_v2(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return with_event(hStart, [&](Event& start) {
    Event* end = Events::instance().resolve(hEnd);
    return end != nullptr ? Events::instance().elapsed(start, *end, pMilliseconds) : CUDA_ERROR_INVALID_HANDLE;
  });
}

}  // namespace mpsshim::interposer::api
