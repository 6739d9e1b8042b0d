// SPDX-License-Identifier: Apache-2.0
// Arrays, textures and surfaces. They are made by helpers, because it may take long, and destroyed in quiet
// windows, because the driver then waits for every kernel.
#include <cstring>
#include <optional>
#include <utility>

#include "broker/executor/base/array_bytes.hpp"
#include "broker/executor/memory/checked_calls.hpp"
#include "broker/executor/records/dispatch.hpp"

namespace mpsshim::broker {

namespace {

using proto::ArrayKind;

bool is_part(const proto::ArrayCreateRecord& record) { return record.kind == ArrayKind::level || record.kind == ArrayKind::plane; }

CUDA_ARRAY3D_DESCRIPTOR descriptor_of(const proto::ArrayCreateRecord& record) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  descriptor.Width = record.width;
  descriptor.Height = record.height;
  descriptor.Depth = record.depth;
  descriptor.Format = static_cast<CUarray_format>(record.format);
  descriptor.NumChannels = record.channels;
  descriptor.Flags = record.flags;
  return descriptor;
}

constexpr std::uint64_t kBlockBytes = 8;  // of an element of formats in blocks, at most: four channels of two bytes

// What it takes of the device, of its user's share. A level or a plane is there already.
CUresult ask_for_room(Session& session, const proto::ArrayCreateRecord& record, DeviceGrant& grant) {
  if (is_part(record) || !session.memory().limit().is_set() || (record.flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0)
    return CUDA_SUCCESS;
  std::uint64_t bytes = 0;
  if (!array_bytes(descriptor_of(record), record.kind == ArrayKind::mipmapped ? record.number : 1, kBlockBytes, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  return session.memory().limit().ask(bytes, grant);
}

CUresult create(const Driver& driver, const proto::ArrayCreateRecord& record, const SessionArray& parent, SessionArray& made) {
  const CUDA_ARRAY3D_DESCRIPTOR descriptor = descriptor_of(record);
  switch (record.kind) {
    case ArrayKind::array: return driver->cuArray3DCreate_v2(&made.array, &descriptor);
    case ArrayKind::mipmapped: return driver->cuMipmappedArrayCreate(&made.mipmapped, &descriptor, record.number);
    case ArrayKind::level:
      return parent.mipmapped != nullptr ? driver->cuMipmappedArrayGetLevel(&made.array, parent.mipmapped, record.number) : CUDA_ERROR_INVALID_HANDLE;
    case ArrayKind::plane:
      return parent.array != nullptr ? driver->cuArrayGetPlane(&made.array, parent.array, record.number) : CUDA_ERROR_INVALID_HANDLE;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// As the driver has described it. Of a mipmapped array: as it was asked for.
proto::ArrayCreateReply describe(const proto::ArrayCreateRecord& record, const SessionArray& made) {
  const CUDA_ARRAY3D_DESCRIPTOR found = made.shape.value_or(descriptor_of(record));
  return {found.Width, found.Height, found.Depth, static_cast<std::uint32_t>(found.Format), found.NumChannels, found.Flags, 0};
}

// An array that is not added ends with `made`.
void add_array(Session& session, Reply& reply, const proto::ArrayCreateRecord& record, CUresult result, const SessionArray& made) {
  if (result != CUDA_SUCCESS) return reply.answer_with(result, proto::ArrayCreateReply{});
  const proto::Known<SessionArray> parent = session.arrays().table().find(record.parent);
  const bool is_orphan = made.is_part && (!parent || parent->hold != made.hold);  // destroyed meanwhile; its id may be another's
  if (is_orphan || !session.arrays().add(record.array, made)) return reply.answer_with(CUDA_ERROR_INVALID_HANDLE, proto::ArrayCreateReply{});
  if (made.is_part) parent->parts.push_back(record.array);
  reply.answer_with(CUDA_SUCCESS, describe(record, made));
}

// In a helper.
CUresult make_array(Session& session, const proto::ArrayCreateRecord& record, const SessionArray& parent, SessionArray& made) {
  const Driver& driver = session.parts().driver;
  DeviceGrant grant;
  CUresult result = ask_for_room(session, record, grant);
  if (result == CUDA_SUCCESS) result = create(driver, record, parent, made);
  session.parts().faults.check(result, session.id(), "cuArrayCreate");
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  if (made.array != nullptr && driver->cuArray3DGetDescriptor_v2(&shape, made.array) == CUDA_SUCCESS) made.shape = shape;
  if (made.is_part) made.hold = parent.hold;
  if (result == CUDA_SUCCESS && !made.is_part) session.arrays().own(made, std::move(grant));
  return result;
}

void make_and_add(Session& session, const SharedReply& reply, const proto::ArrayCreateRecord& record, SessionArray parent, bool is_releasing) {
  SessionArray made;
  made.is_part = is_part(record);
  const CUresult result = make_array(session, record, parent, made);
  const bool is_awaited = result == CUDA_ERROR_OUT_OF_MEMORY && is_releasing && !made.is_part;
  session.finish_job([&session, reply, record, result, is_awaited, parent = std::move(parent), made = std::move(made)] {
    if (!is_awaited) return add_array(session, *reply, record, result, made);
    session.start_after_releases([reply, record](const std::shared_ptr<Session>& self) { make_and_add(*self, reply, record, {}, false); });
  });
}

struct Descriptions {
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC texture{};
  CUDA_RESOURCE_VIEW_DESC view{};
};

bool read_descriptions(std::span<const std::byte> trailing, const proto::SamplerCreateRecord& record, Descriptions& read) {
  const auto take = [&](auto& description) {
    if (trailing.size() < sizeof description) return false;
    std::memcpy(&description, trailing.data(), sizeof description);
    trailing = trailing.subspan(sizeof description);
    return true;
  };
  if (!take(read.resource)) return false;
  if (record.is_surface) return true;
  return take(read.texture) && (!record.has_view || take(read.view));
}

}  // namespace

void handle(OutOfLineCall& incoming, const proto::ArrayCreateRecord& record) {
  Session& session = incoming.session;
  if (!record.array.has_kind()) return incoming.malformed("its array id is of another kind");
  if (record.restores) return incoming.reject(CUDA_ERROR_MPS_SERVER_NOT_READY);  // what it held is gone
  if (!session.arrays().has_room()) return incoming.reject(CUDA_ERROR_OUT_OF_MEMORY);
  SessionArray parent;
  if (is_part(record)) {
    const proto::Known<SessionArray> found = incoming.find(session.arrays().table(), record.parent);
    if (!found) return;
    parent = *found;
  }
  const bool is_releasing = session.is_releasing();  // before the attempt, as for chunks
  session.start_job([reply = incoming.share_reply(), record, parent, is_releasing](const std::shared_ptr<Session>& owner) mutable {
    make_and_add(*owner, reply, record, std::move(parent), is_releasing);
  });
}

void handle(OutOfLineCall& incoming, const proto::SamplerCreateRecord& record) {
  Session& session = incoming.session;
  Descriptions read;
  if (!read_descriptions(incoming.trailing, record, read)) return incoming.malformed("its descriptions exceed it");
  const bool is_surface = record.is_surface;
  Checked<CheckedResource> resource = incoming.checked().resource(read.resource, record.array);
  if (!resource) return incoming.refuse(resource.refusal());
  const proto::Known<SessionArray> array = session.arrays().table().find(record.array);
  ArrayHold hold = array ? array->hold : nullptr;
  if (session.arrays().samplers(is_surface).size() >= SessionArrays::kMostSamplers) return incoming.reject(CUDA_ERROR_OUT_OF_MEMORY);
  session.start_job([reply = incoming.share_reply(), resource = *resource, read, is_surface, has_view = bool{record.has_view}, hold = std::move(hold),
                     use = session.memory_uses().begin()](const std::shared_ptr<Session>& owner) mutable {
    const CheckedCalls calls(owner->parts().driver);
    unsigned long long handle = 0;
    CUresult result =
        is_surface ? calls.make_surface(handle, resource) : calls.make_texture(handle, resource, read.texture, has_view ? &read.view : nullptr);
    use = nullptr;
    result = owner->parts().faults.check(result, owner->id(), is_surface ? "cuSurfObjectCreate" : "cuTexObjectCreate");
    owner->finish_job([owner, reply, handle, is_surface, result, hold = std::move(hold)] {
      if (result == CUDA_SUCCESS) owner->arrays().samplers(is_surface).emplace(handle, hold);
      reply->answer_with(result, proto::SamplerCreateReply{handle});
    });
  });
}

void handle(SessionPost& incoming, const proto::ArrayObjectDestroyRecord& record) {
  Session& session = incoming.session;
  if (record.kind == proto::ArrayObject::array) {
    const proto::Known<SessionArray> found = incoming.find(session.arrays().table(), proto::ArrayId{record.object});
    if (!found || found->is_part) return;
    const SessionArrays::Ticket ticket = session.arrays().retire(proto::ArrayId{record.object});
    return session.when_completed([&session, ticket] { session.arrays().let_go(ticket); });
  }
  const bool is_surface = record.kind == proto::ArrayObject::surface;
  const SessionArrays::Ticket ticket = session.arrays().retire_sampler(record.object, is_surface);
  if (ticket == 0) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  session.when_completed([&session, ticket] { session.arrays().let_go(ticket); });
}

}  // namespace mpsshim::broker
