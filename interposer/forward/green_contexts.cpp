// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/green_contexts.hpp"

#include <cstring>
#include <memory>

#include "interposer/forward/events.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::forward {

std::atomic<bool> GreenContexts::any_{false};

GreenContexts& GreenContexts::instance() {
  return PerSession<GreenContexts>::get([] { return new GreenContexts(); });
}

GreenObject* GreenContexts::of_context(CUcontext context) {
  const auto found = find_context(context);
  return found && found->green != proto::GreenContextId{} ? table_.find(found->green).get() : nullptr;
}

GreenObject* GreenContexts::place_of(CUcontext context) {
  const auto found = find_context(context);
  if (!found) return nullptr;
  const proto::GreenContextId id = found->part != proto::GreenContextId{} ? found->part : found->green;
  return id != proto::GreenContextId{} ? table_.find(id).get() : nullptr;
}

proto::GreenContextId GreenContexts::told_of(proto::GreenContextId green) {
  const proto::Known<GreenObject> known = table_.find(green);
  return known && !known->is_part() ? green : proto::GreenContextId{};
}

CUresult GreenContexts::create(std::span<const proto::ResourceShare> shares, CUdevice device, GreenObject*& green) {
  auto object = std::make_unique<GreenObject>();
  green = object.get();
  green->device = device;
  {
    const std::lock_guard lock(mutex_);
    green->id = table_.add(std::move(object));
  }
  if (green->id == proto::GreenContextId{}) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult error = make(shares, *green);
  if (error == CUDA_SUCCESS) error = create_green_context(device, green->id, green->context, green->unique_id);
  if (error != CUDA_SUCCESS) {
    const std::lock_guard lock(mutex_);
    (void)table_.take(green->id);
  }
  return error;
}

// In the executor.
CUresult GreenContexts::make(std::span<const proto::ResourceShare> shares, GreenObject& green) {
  const proto::GreenContextCreateRecord record{green.id};
  proto::GreenContextCreateReply reply{};
  if (const CUresult error = session().call_kept(record, std::as_bytes(shares), reply, green.recipe); error != CUDA_SUCCESS) return error;
  green.told.type = reply.type;
  std::memcpy(green.told.content, reply.content, sizeof reply.content);
  any_.store(true, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult GreenContexts::destroy(proto::GreenContextId id) {
  const std::lock_guard ending(ending_mutex_);
  const proto::Known<GreenObject> known = table_.find(id);
  if (!known) return CUDA_ERROR_INVALID_CONTEXT;
  GreenObject& green = *known;
  forget_null_stream(id);
  for (Stream* helper : {green.behind_all, green.before_all}) {
    if (helper != nullptr) (void)Streams::instance().destroy(helper->id);
  }
  Streams::instance().orphan_all_of(id);
  const CUresult error =
      session().channel().post<proto::GreenContextDestroyRecord>({}, 0, [&](proto::GreenContextDestroyRecord& record, std::byte*, Place place) {
        record.green = id;
        session().end_recipe(green.recipe, place);
      });
  if (!green.is_part()) destroy_green_context(green.context);
  const std::lock_guard lock(mutex_);
  for (const std::uint32_t part : green.cut) --uses_[part];
  (void)table_.take(id);
  return error;
}

void GreenContexts::destroy_all() {
  if (!any()) return;
  std::vector<proto::GreenContextId> all;
  {
    const std::lock_guard lock(mutex_);
    table_.for_each([&](proto::GreenContextId id, const GreenObject& green) {
      if (!green.is_part()) all.push_back(id);
    });
  }
  for (const proto::GreenContextId id : all) (void)destroy(id);
}

Stream* GreenContexts::null_stream(GreenObject& green) {
  if (Stream* stream = green.null_stream.load(std::memory_order_acquire)) return stream;
  const std::lock_guard lock(green.mutex);
  if (Stream* stream = green.null_stream.load(std::memory_order_relaxed)) return stream;
  Stream* stream = nullptr;
  const StreamShape shape{CU_STREAM_DEFAULT, 0, green.context, green.id, true};
  if (Streams::instance().create(shape, stream) != CUDA_SUCCESS) return nullptr;
  if (green.is_part())
    stream->is_captured.store(Streams::instance().legacy_default()->is_captured.load(std::memory_order_relaxed), std::memory_order_relaxed);
  green.null_stream.store(stream, std::memory_order_release);
  return stream;
}

// Nothing looks at it from then on. Whoever ends the green context has it destroyed with its other streams.
void GreenContexts::forget_null_stream(proto::GreenContextId part) {
  const std::lock_guard lock(mutex_);
  if (const proto::Known<GreenObject> green = table_.find(part)) green->null_stream.store(nullptr, std::memory_order_release);
}

void GreenContexts::guard_null_streams(bool is_captured) {
  const std::lock_guard lock(mutex_);
  table_.for_each([&](proto::GreenContextId, GreenObject& green) {
    Stream* const stream = green.is_part() ? green.null_stream.load(std::memory_order_acquire) : nullptr;
    if (stream != nullptr) stream->is_captured.store(is_captured, std::memory_order_relaxed);
  });
}

// Belongs to no context, as those of the session do not: it stands for the green context, and is not one of its streams.
CUresult GreenContexts::helper_stream(GreenObject& green, Stream*& stream) {
  const std::lock_guard lock(green.mutex);
  if (stream != nullptr) return CUDA_SUCCESS;
  return Streams::instance().create(StreamShape{CU_STREAM_NON_BLOCKING, 0, nullptr, {}, false}, stream);
}

CUresult GreenContexts::join(GreenObject& green, Stream& stream, bool waits, bool precedes) {
  return post_work<proto::GreenContextJoinRecord>(stream, 0, [&](proto::GreenContextJoinRecord& record, std::byte*) {
    record = {green.id, waits, precedes};
  });
}

CUresult GreenContexts::record(GreenObject& green, Event& event) {
  if (const CUresult error = helper_stream(green, green.behind_all); error != CUDA_SUCCESS) return error;
  if (const CUresult error = join(green, *green.behind_all, true, false); error != CUDA_SUCCESS) return error;
  return Events::instance().record(event, *green.behind_all, CU_EVENT_RECORD_DEFAULT);
}

CUresult GreenContexts::wait(GreenObject& green, Event& event) {
  if (const CUresult error = helper_stream(green, green.before_all); error != CUDA_SUCCESS) return error;
  const CUresult error = Events::instance().wait_on_stream(event, *green.before_all, CU_EVENT_WAIT_DEFAULT);
  return error == CUDA_SUCCESS ? join(green, *green.before_all, false, true) : error;
}

}  // namespace mpsshim::interposer::forward
