// SPDX-License-Identifier: Apache-2.0
// Arrays, what is copied to and from them, textures and surfaces. They are made by helpers, because it may take long, and destroyed in quiet
// windows, because the driver then waits for every kernel.
#include <cstring>
#include <optional>
#include <utility>

#include "broker/executor/dispatch.hpp"

namespace mpsshim::broker {

namespace {

enum ArrayKind : std::uint32_t { kArray = 0, kMipmapped = 1, kLevel = 2, kPlane = 3 };
enum ObjectKind : std::uint32_t { kArrayObject = 0, kTexture = 1, kSurface = 2 };
enum ArrayCopySpace : std::uint32_t { kDevice = 0, kRegisteredHost = 1, kOfArray = 3 };

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

CUresult create(const Driver& driver, const proto::ArrayCreateRecord& record, const SessionArray& parent, SessionArray& made) {
  const CUDA_ARRAY3D_DESCRIPTOR descriptor = descriptor_of(record);
  made.is_part = record.kind == kLevel || record.kind == kPlane;
  switch (record.kind) {
    case kArray: return driver->cuArray3DCreate_v2(&made.array, &descriptor);
    case kMipmapped: return driver->cuMipmappedArrayCreate(&made.mipmapped, &descriptor, record.number);
    case kLevel:
      return parent.mipmapped != nullptr ? driver->cuMipmappedArrayGetLevel(&made.array, parent.mipmapped, record.number) : CUDA_ERROR_INVALID_HANDLE;
    default: return parent.array != nullptr ? driver->cuArrayGetPlane(&made.array, parent.array, record.number) : CUDA_ERROR_INVALID_HANDLE;
  }
}

// As the driver describes it. Of a mipmapped array: as it was asked for.
proto::ArrayCreateReply describe(const Driver& driver, const proto::ArrayCreateRecord& record, const SessionArray& made) {
  CUDA_ARRAY3D_DESCRIPTOR found = descriptor_of(record);
  if (made.array != nullptr && driver->cuArray3DGetDescriptor_v2(&found, made.array) != CUDA_SUCCESS) found = descriptor_of(record);
  return {found.Width, found.Height, found.Depth, static_cast<std::uint32_t>(found.Format), found.NumChannels, found.Flags, 0};
}

void destroy_in_window(Session& session, const char* what, SessionArrays::Ticket ticket) {
  session.start_window_job(what, [&session, ticket] { session.arrays().destroy(ticket); });
}

void add_array(Session& session, Reply& reply, const proto::ArrayCreateRecord& record, CUresult result, const SessionArray& made) {
  if (result != CUDA_SUCCESS) return reply.answer_with(result, proto::ArrayCreateReply{});
  const proto::Known<SessionArray> parent = session.arrays().table().find(record.parent);
  const bool is_orphan = made.is_part && !parent;  // destroyed meanwhile
  if (is_orphan || !session.arrays().add(record.array, made)) {
    destroy_in_window(session, "cuArrayDestroy", session.arrays().retire(made));
    return reply.answer_with(CUDA_ERROR_INVALID_HANDLE, proto::ArrayCreateReply{});
  }
  if (made.is_part) parent->parts.push_back(record.array);
  reply.answer_with(CUDA_SUCCESS, describe(session.parts().driver, record, made));
}

// The end of a copy that is linear memory: bytes from its first to its last one.
std::optional<std::uint64_t> extent(const proto::ArrayCopyRecord& record, std::uint64_t pitch, std::uint64_t rows) {
  std::uint64_t before = 0;
  std::uint64_t all = 0;
  if ((record.height > 1 || record.depth > 1) && pitch < record.width) return std::nullopt;
  if (record.depth > 1 && rows < record.height) return std::nullopt;
  if (__builtin_mul_overflow(record.depth - 1, record.depth > 1 ? rows : 0, &before)) return std::nullopt;
  if (__builtin_add_overflow(before, record.height - 1, &before)) return std::nullopt;
  if (__builtin_mul_overflow(before, pitch, &all) || __builtin_add_overflow(all, record.width, &all)) return std::nullopt;
  return all;
}

struct End {
  CUmemorytype type = CU_MEMORYTYPE_DEVICE;
  CUarray array = nullptr;
  std::uint64_t address = 0;
};

CUresult find_end(Incoming& incoming, const proto::ArrayCopyRecord& record, bool is_destination, End& end) {
  Session& session = incoming.session;
  end.address = is_destination ? record.destination : record.source;
  switch (is_destination ? record.destination_space : record.source_space) {
    case kOfArray: {
      const proto::Known<SessionArray> array = session.arrays().table().find(proto::ArrayId{end.address});
      if (!array || array->array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      end.type = CU_MEMORYTYPE_ARRAY;
      end.array = array->array;
      return CUDA_SUCCESS;
    }
    case kDevice:
    case kRegisteredHost: {
      const bool is_host = (is_destination ? record.destination_space : record.source_space) == kRegisteredHost;
      const auto bytes = is_destination ? extent(record, record.destination_pitch, record.destination_rows)
                                        : extent(record, record.source_pitch, record.source_rows);
      if (!bytes) return CUDA_ERROR_INVALID_VALUE;
      end.type = is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      const bool is_own = is_host ? session.memory().owns_pinned(end.address, *bytes) : session.memory().owns_device(end.address, *bytes);
      return is_own ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    default: incoming.malformed("it names an unknown space"); return CUDA_ERROR_INVALID_VALUE;
  }
}

std::unique_ptr<CUDA_MEMCPY3D> description_of(const proto::ArrayCopyRecord& record, const End& destination, const End& source) {
  auto copy = std::make_unique<CUDA_MEMCPY3D>();
  copy->srcMemoryType = source.type;
  copy->srcArray = source.array;
  if (source.type == CU_MEMORYTYPE_HOST) copy->srcHost = reinterpret_cast<const void*>(source.address);  // NOLINT(performance-no-int-to-ptr)
  if (source.type == CU_MEMORYTYPE_DEVICE) copy->srcDevice = source.address;
  copy->srcPitch = record.source_pitch;
  copy->srcHeight = record.source_rows;
  copy->srcXInBytes = record.source_offset[0];
  copy->srcY = record.source_offset[1];
  copy->srcZ = record.source_offset[2];
  copy->dstMemoryType = destination.type;
  copy->dstArray = destination.array;
  if (destination.type == CU_MEMORYTYPE_HOST) copy->dstHost = reinterpret_cast<void*>(destination.address);  // NOLINT(performance-no-int-to-ptr)
  if (destination.type == CU_MEMORYTYPE_DEVICE) copy->dstDevice = destination.address;
  copy->dstPitch = record.destination_pitch;
  copy->dstHeight = record.destination_rows;
  copy->dstXInBytes = record.destination_offset[0];
  copy->dstY = record.destination_offset[1];
  copy->dstZ = record.destination_offset[2];
  copy->WidthInBytes = record.width;
  copy->Height = record.height;
  copy->Depth = record.depth;
  return copy;
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
  if (record.is_surface != 0) return true;
  return take(read.texture) && (record.has_view == 0 || take(read.view));
}

// Puts in what the resource names, if it is the session's. Linear memory is where it begins: where a texture ends the driver does not ask
// natively either, and a kernel that fetches may as well load.
CUresult resolve_resource(Session& session, const proto::SamplerCreateRecord& record, CUDA_RESOURCE_DESC& resource) {
  const proto::Known<SessionArray> array = session.arrays().table().find(record.array);
  const auto begins_in_own = [&](std::uint64_t address) {
    return session.memory().owns_device(address, 1) || session.memory().owns_pinned(address, 1);
  };
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      if (!array || array->array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      resource.res.array.hArray = array->array;
      return CUDA_SUCCESS;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      if (!array || array->mipmapped == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      resource.res.mipmap.hMipmappedArray = array->mipmapped;
      return CUDA_SUCCESS;
    case CU_RESOURCE_TYPE_LINEAR: return begins_in_own(resource.res.linear.devPtr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_PITCH2D: return begins_in_own(resource.res.pitch2D.devPtr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

void handle(Incoming& incoming, const proto::ArrayCreateRecord& record) {
  Session& session = incoming.session;
  if (!record.array.has_kind()) return incoming.malformed("its array id is of another kind");
  if (record.kind > kPlane) return incoming.malformed("its kind is none");
  if (record.restores != 0) return incoming.reject(CUDA_ERROR_MPS_SERVER_NOT_READY);  // what it held is gone
  if (!session.arrays().has_room()) return incoming.reject(CUDA_ERROR_OUT_OF_MEMORY);
  SessionArray parent;
  if (record.kind == kLevel || record.kind == kPlane) {
    const proto::Known<SessionArray> found = incoming.find(session.arrays().table(), record.parent);
    if (!found) return;
    parent = *found;
  }
  session.start_job([reply = incoming.share_reply(), record, parent](const std::shared_ptr<Session>& owner) {
    SessionArray made;
    const CUresult result = owner->parts().faults.check(create(owner->parts().driver, record, parent, made), owner->id(), "cuArrayCreate");
    owner->finish_job([owner, reply, record, result, made] { add_array(*owner, *reply, record, result, made); });
  });
}

void handle(Incoming& incoming, const proto::ArrayCopyRecord& record) {
  StreamQueue* queue = incoming.stream();
  if (queue == nullptr || record.width == 0 || record.height == 0 || record.depth == 0) return;
  End destination, source;
  CUresult result = find_end(incoming, record, true, destination);
  if (result == CUDA_SUCCESS) result = find_end(incoming, record, false, source);
  if (!incoming.session.is_reading()) return;
  if (result != CUDA_SUCCESS) return incoming.reject(result);
  incoming.session.streams().append(*queue, ArrayCopyOp{description_of(record, destination, source)});
}

void handle(Incoming& incoming, const proto::SamplerCreateRecord& record) {
  Session& session = incoming.session;
  Descriptions read;
  if (!read_descriptions(incoming.trailing, record, read)) return incoming.malformed("its descriptions exceed it");
  const bool is_surface = record.is_surface != 0;
  const CUresult refused = resolve_resource(session, record, read.resource);
  if (refused != CUDA_SUCCESS) return incoming.reject(refused);
  if (session.arrays().samplers(is_surface).size() >= SessionArrays::kMostSamplers) return incoming.reject(CUDA_ERROR_OUT_OF_MEMORY);
  session.start_job([reply = incoming.share_reply(), read, is_surface, has_view = record.has_view != 0](const std::shared_ptr<Session>& owner) {
    const Driver& driver = owner->parts().driver;
    unsigned long long handle = 0;
    CUresult result = is_surface ? driver->cuSurfObjectCreate(&handle, &read.resource)
                                 : driver->cuTexObjectCreate(&handle, &read.resource, &read.texture, has_view ? &read.view : nullptr);
    result = owner->parts().faults.check(result, owner->id(), is_surface ? "cuSurfObjectCreate" : "cuTexObjectCreate");
    owner->finish_job([owner, reply, handle, is_surface, result] {
      if (result == CUDA_SUCCESS) owner->arrays().samplers(is_surface).insert(handle);
      reply->answer_with(result, proto::SamplerCreateReply{handle});
    });
  });
}

void handle(Incoming& incoming, const proto::ArrayObjectDestroyRecord& record) {
  Session& session = incoming.session;
  if (record.kind > kSurface) return incoming.malformed("its kind is none");
  if (record.kind == kArrayObject) {
    const proto::Known<SessionArray> found = incoming.find(session.arrays().table(), proto::ArrayId{record.object});
    if (!found || found->is_part) return;
    const SessionArrays::Ticket ticket = session.arrays().retire(proto::ArrayId{record.object});
    return session.when_completed([&session, ticket] { destroy_in_window(session, "cuArrayDestroy", ticket); });
  }
  const bool is_surface = record.kind == kSurface;
  if (session.arrays().samplers(is_surface).erase(record.object) == 0) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  const SessionArrays::Ticket ticket = session.arrays().retire_sampler(record.object, is_surface);
  session.when_completed([&session, ticket] { destroy_in_window(session, "cuTexObjectDestroy", ticket); });
}

void StreamQueue::issue_array_copy(const ArrayCopyOp& copy) {
  const ScopedCall call(context_.session, "cuMemcpy3DAsync");
  const std::lock_guard lock(issue_lock());
  context_.check(driver()->cuMemcpy3DAsync_v2(copy.description.get(), handle()), "cuMemcpy3DAsync");
  submitted(1);
}

}  // namespace mpsshim::broker
