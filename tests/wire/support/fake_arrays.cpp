// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/wire/support/fake_work.hpp"

namespace mpsshim::test {

namespace {

template <typename Handle>
std::uint64_t number_of(Handle handle) {
  return reinterpret_cast<std::uint64_t>(handle);
}

}  // namespace

// The functions behind the table, which count what there is and who names what is gone.
struct FakeArrayEntry {
  static void look_for(FakeDriver& fake, std::uint64_t array) {
    if (!fake.arrays_.contains(array)) ++fake.dead_uses;
  }
  static std::uint64_t make(const CUDA_ARRAY3D_DESCRIPTOR& shape, std::uint64_t parent = 0) {
    FakeDriver& fake = FakeDriver::current();
    const std::lock_guard lock(fake.mutex_);
    if (parent != 0) look_for(fake, parent);
    const std::uint64_t made = fake.next_handle_ += 16;
    fake.arrays_[made] = {shape, parent};
    if (parent == 0) ++fake.arrays;
    return made;
  }
  static CUresult end(std::uint64_t array) {
    FakeDriver& fake = FakeDriver::current();
    fake.look_for_users("cuArrayDestroy", array, 1);
    const std::lock_guard lock(fake.mutex_);
    look_for(fake, array);
    for (const auto& [texture, read] : fake.texture_arrays_) {
      if (read == array) ++fake.dead_uses;
    }
    fake.oracle.note_array_gone(array);
    fake.arrays_.erase(array);
    // Its parts, then theirs.
    while (std::erase_if(fake.arrays_, [&](const auto& one) {
             const bool ends = one.second.parent != 0 && !fake.arrays_.contains(one.second.parent);
             if (ends) fake.oracle.note_array_gone(one.first);
             return ends;
           }) != 0) {
    }
    --fake.arrays;
    return CUDA_SUCCESS;
  }
  static CUDA_ARRAY3D_DESCRIPTOR shape_of(std::uint64_t array) {
    FakeDriver& fake = FakeDriver::current();
    const std::lock_guard lock(fake.mutex_);
    look_for(fake, array);
    return fake.arrays_[array].shape;
  }

  static CUresult CUDAAPI create(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
    if (const FakeDriver& fake = FakeDriver::current(); fake.arrays >= fake.most_arrays) return CUDA_ERROR_OUT_OF_MEMORY;
    *array = reinterpret_cast<CUarray>(make(*shape));
    FakeDriver::current().oracle.note_array(*array, *shape);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI create_mipmapped(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned) {
    *array = reinterpret_cast<CUmipmappedArray>(make(*shape));
    FakeDriver::current().oracle.note_mipmapped(*array);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI map_mipmapped(CUmipmappedArray* array, CUexternalMemory, const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC* description) {
    return create_mipmapped(array, &description->arrayDesc, description->numLevels);
  }
  static CUresult CUDAAPI level(CUarray* array, CUmipmappedArray mipmapped, unsigned level) {
    CUDA_ARRAY3D_DESCRIPTOR shape = shape_of(number_of(mipmapped));
    for (std::size_t* extent : {&shape.Width, &shape.Height, &shape.Depth}) {
      if (*extent != 0) *extent = std::max<std::size_t>(level < 64 ? *extent >> level : 0, 1);
    }
    *array = reinterpret_cast<CUarray>(make(shape, number_of(mipmapped)));
    FakeDriver::current().oracle.note_array(*array, shape);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI plane(CUarray* plane, CUarray array, unsigned) {
    const CUDA_ARRAY3D_DESCRIPTOR shape = shape_of(number_of(array));
    *plane = reinterpret_cast<CUarray>(make(shape, number_of(array)));
    FakeDriver::current().oracle.note_array(*plane, shape);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI describe(CUDA_ARRAY3D_DESCRIPTOR* shape, CUarray array) {
    *shape = shape_of(number_of(array));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI destroy(CUarray array) { return end(number_of(array)); }
  static CUresult CUDAAPI destroy_mipmapped(CUmipmappedArray array) { return end(number_of(array)); }
  static CUresult CUDAAPI create_texture(CUtexObject* texture, const CUDA_RESOURCE_DESC* resource, const CUDA_TEXTURE_DESC*,
                                         const CUDA_RESOURCE_VIEW_DESC*) {
    FakeDriver& fake = FakeDriver::current();
    const std::lock_guard lock(fake.mutex_);
    const std::uint64_t read = resource->resType == CU_RESOURCE_TYPE_ARRAY             ? number_of(resource->res.array.hArray)
                               : resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY ? number_of(resource->res.mipmap.hMipmappedArray)
                                                                                       : 0;
    if (read != 0) look_for(fake, read);
    *texture = fake.next_handle_ += 16;
    fake.texture_arrays_[*texture] = read;
    ++fake.textures;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI destroy_texture(CUtexObject texture) {
    FakeDriver& fake = FakeDriver::current();
    const std::lock_guard lock(fake.mutex_);
    if (fake.texture_arrays_.erase(texture) == 0) ++fake.dead_uses;
    --fake.textures;
    return CUDA_SUCCESS;
  }
};

CUarray FakeDriver::make_array(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  CUarray array = nullptr;
  (void)FakeArrayEntry::create(&array, &shape);
  return array;
}

void FakeArrays::fill(DriverTable& table) {
  table.cuArray3DCreate_v2 = FakeArrayEntry::create;
  table.cuArray3DGetDescriptor_v2 = FakeArrayEntry::describe;
  table.cuArrayDestroy = FakeArrayEntry::destroy;
  table.cuArrayGetPlane = FakeArrayEntry::plane;
  table.cuExternalMemoryGetMappedMipmappedArray = FakeArrayEntry::map_mipmapped;
  table.cuMipmappedArrayCreate = FakeArrayEntry::create_mipmapped;
  table.cuMipmappedArrayGetLevel = FakeArrayEntry::level;
  table.cuMipmappedArrayDestroy = FakeArrayEntry::destroy_mipmapped;
  table.cuTexObjectCreate = FakeArrayEntry::create_texture;
  table.cuTexObjectDestroy = FakeArrayEntry::destroy_texture;
}

}  // namespace mpsshim::test
