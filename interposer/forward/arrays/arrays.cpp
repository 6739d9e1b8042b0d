// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/arrays/arrays.hpp"

#include <memory>
#include <vector>

#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

namespace {

using proto::ArrayKind;

// Levels and planes, and planes of levels: what is found in a part before the part, which `f` may end. Of an array that is destroyed: CUDA forbids
// using it, or what is part of it, meanwhile.
template <typename F>
void for_each_part(const Array& array, const F& f) {
  array.mutex.assume_held();
  for (const auto& [number, part] : array.parts) {
    for_each_part(*part, f);
    f(*part);
  }
}

}  // namespace

std::uint32_t element_bytes(const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  switch (static_cast<int>(descriptor.Format)) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return descriptor.NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2 * descriptor.NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4 * descriptor.NumChannels;
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X1: return 1;
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1: return 2;
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X4:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X2: return 4;
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X4: return 8;
    default: return 0;
  }
}

Arrays& Arrays::instance() {
  return PerSession<Arrays>::get([] { return new Arrays(); });
}

Array* Arrays::resolve(CUarray handle) {
  Array* array = table_.find(id_of<proto::HandleKind::array>(handle)).get();
  return array != nullptr && !array->is_mipmapped() ? array : nullptr;
}

Array* Arrays::resolve(CUmipmappedArray handle) {
  Array* array = table_.find(id_of<proto::HandleKind::array>(handle)).get();
  return array != nullptr && array->is_mipmapped() ? array : nullptr;
}

template <typename Record, typename Reply>
CUresult Arrays::add(std::unique_ptr<Array> object, Record record, Reply& reply, Array*& result) {
  Array* array = object.get();
  {
    const std::lock_guard lock(mutex_);
    const proto::ArrayId id = table_.add(std::move(object));
    if (id == proto::ArrayId{}) return CUDA_ERROR_OUT_OF_MEMORY;  // and the array is gone
    array->id = id;
  }
  record.array = array->id;
  if (const CUresult error = session().call_kept(record, {}, reply, array->recipe); error != CUDA_SUCCESS) {
    const std::lock_guard lock(mutex_);
    (void)table_.take(array->id);
    return error;
  }
  result = array;
  return CUDA_SUCCESS;
}

CUresult Arrays::make(const proto::ArrayCreateRecord& what, CUcontext context, Array*& array) {
  auto object = std::make_unique<Array>();
  object->context = context;
  object->is_part = what.kind == ArrayKind::level || what.kind == ArrayKind::plane;
  object->levels = what.kind == ArrayKind::mipmapped ? what.number : 0;
  proto::ArrayCreateReply reply{};
  if (const CUresult error = add(std::move(object), what, reply, array); error != CUDA_SUCCESS) return error;
  array->descriptor = {reply.width, reply.height, reply.depth, static_cast<CUarray_format>(reply.format), reply.channels, reply.flags};
  return CUDA_SUCCESS;
}

CUresult Arrays::map(proto::ExternalMemoryId memory, std::uint64_t offset, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, std::uint32_t levels,
                     CUcontext context, Array*& array) {
  auto object = std::make_unique<Array>();
  object->context = context;
  object->levels = levels;
  object->descriptor = descriptor;
  proto::ExternalMapArrayRecord record{};
  record.memory = memory;
  record.offset = offset;
  record.width = descriptor.Width;
  record.height = descriptor.Height;
  record.depth = descriptor.Depth;
  record.format = static_cast<std::uint32_t>(descriptor.Format);
  record.channels = descriptor.NumChannels;
  record.flags = descriptor.Flags;
  record.levels = levels;
  proto::ExternalMapArrayReply reply{};
  return add(std::move(object), record, reply, array);
}

CUresult Arrays::create(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, std::uint32_t levels, CUcontext context, Array*& array) {
  proto::ArrayCreateRecord record{};
  record.width = descriptor.Width;
  record.height = descriptor.Height;
  record.depth = descriptor.Depth;
  record.format = static_cast<std::uint32_t>(descriptor.Format);
  record.channels = descriptor.NumChannels;
  record.flags = descriptor.Flags;
  record.kind = levels != 0 ? ArrayKind::mipmapped : ArrayKind::array;
  record.number = levels;
  return make(record, context, array);
}

CUresult Arrays::part(Array& parent, std::uint32_t number, Array*& array) {
  const std::lock_guard lock(parent.mutex);
  if (const auto found = parent.parts.find(number); found != parent.parts.end()) {
    array = found->second;
    return CUDA_SUCCESS;
  }
  proto::ArrayCreateRecord record{};
  record.parent = parent.id;
  record.kind = parent.is_mipmapped() ? ArrayKind::level : ArrayKind::plane;
  record.number = number;
  if (const CUresult error = make(record, parent.context, array); error != CUDA_SUCCESS) return error;
  parent.parts.emplace(number, array);
  return CUDA_SUCCESS;
}

CUresult Arrays::destroy(proto::ArrayId id) {
  const std::lock_guard ending(ending_mutex_);
  const proto::Known<Array> known = table_.find(id);
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  const Array& array = *known;
  array.mutex.assume_held();  // CUDA forbids using a handle while it is destroyed
  const CUresult error =
      session().channel().post<proto::ArrayObjectDestroyRecord>({}, 0, [&](proto::ArrayObjectDestroyRecord& record, std::byte*, Place place) {
        record.object = id.value;
        array.mutex.assume_held();
        session().end_recipe(array.recipe, place);
        for_each_part(array, [&](const Array& part) { session().end_recipe(part.recipe, place); });
      });
  const std::lock_guard lock(mutex_);
  for_each_part(array, [&](const Array& part) { (void)table_.take(part.id); });
  (void)table_.take(id);
  return error;
}

void Arrays::destroy_all_of(CUcontext context) {
  std::vector<proto::ArrayId> ended;
  {
    const std::lock_guard lock(mutex_);
    table_.for_each([&](proto::ArrayId id, const Array& array) {
      if (array.context == context && !array.is_part) ended.push_back(id);
    });
  }
  for (const proto::ArrayId id : ended) (void)destroy(id);
}

}  // namespace mpsshim::interposer::forward
