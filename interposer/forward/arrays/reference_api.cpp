// SPDX-License-Identifier: Apache-2.0
// Texture and surface references: looked up in modules, bound to memory and arrays (CUDA Driver API manual, "Texture Reference Management
// [DEPRECATED]", "Surface Reference Management [DEPRECATED]"). How a texture is read is in reference_settings_api.cpp.
#include "gen/api_declarations.hpp"
#include "interposer/forward/arrays/arrays.hpp"
#include "interposer/forward/arrays/reference_access.hpp"
#include "interposer/forward/arrays/references.hpp"
#include "interposer/forward/memory/copy.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

using namespace forward;
using proto::ReferenceSource;

namespace {

constexpr unsigned kBindingFlags = CU_TRSA_OVERRIDE_FORMAT;  // which the driver demands no more (H200, driver 580)

std::uint64_t limit_of(CUdevice_attribute attribute) {
  const proto::DeviceFacts* facts = device_facts(session_device());
  int value = 0;
  if (facts == nullptr || device_attribute(*facts, attribute, value) != CUDA_SUCCESS || value <= 0) return 1;
  return static_cast<std::uint64_t>(value);
}

template <typename Handle>
CUresult look_up(Handle* handle, CUmodule hmod, const char* name, bool is_surface) {
  if (handle == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  Module* module = Modules::instance().resolve(hmod);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Reference* reference = nullptr;
  const CUresult error = References::instance().look_up(*module, name, is_surface, reference);
  if (error == CUDA_SUCCESS) *handle = to_handle<Handle>(reference->id);
  return error;
}

void let_go(proto::ReferenceSetRecord& set) {
  set.source = ReferenceSource::nothing;
  set.array = {};
  set.address = set.size_bytes = set.width = set.height = 0;
}

// An array's format is the texture's.
template <typename Handle>
CUresult bind_array(Reference& reference, Handle handle, ReferenceSource source) {
  const Array* array = Arrays::instance().resolve(handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return References::instance().change(reference, [&](proto::ReferenceSetRecord& set) {
    let_go(set);
    set.source = source;
    set.array = array->id;
    set.format = static_cast<std::uint32_t>(array->descriptor.Format);
    set.channels = array->descriptor.NumChannels;
    set.is_set.set(proto::ReferenceSetting::format, false);
  });
}

template <typename Array, typename Handle>
CUresult get_array(Array* result, Handle handle, ReferenceSource source) {
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_reference(handle, [&](const proto::ReferenceSetRecord& set) {
    if (set.source != source) return CUDA_ERROR_INVALID_VALUE;
    *result = to_handle<Array>(set.array);
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUresult cuModuleGetTexRef(CUtexref* pTexRef, CUmodule hmod, const char* name) { return look_up(pTexRef, hmod, name, false); }
CUresult cuModuleGetSurfRef(CUsurfref* pSurfRef, CUmodule hmod, const char* name) { return look_up(pSurfRef, hmod, name, true); }

CUresult cuTexRefCreate(CUtexref* pTexRef) {
  if (pTexRef == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  Reference* reference = nullptr;
  const CUresult error = References::instance().create(reference);
  if (error == CUDA_SUCCESS) *pTexRef = to_handle<CUtexref>(reference->id);
  return error;
}

CUresult cuTexRefDestroy(CUtexref hTexRef) {
  return with_reference_object(hTexRef, [](Reference& reference) {
    if (reference.module != proto::ModuleId{}) return CUDA_ERROR_INVALID_VALUE;  // it ends with its module
    References::instance().destroy(reference);
    return CUDA_SUCCESS;
  });
}

// A reference is its module's, whose kernels read through it anyway. NVIDIA's driver 580 takes no call of it (H200).
CUresult cuParamSetTexRef(CUfunction, int, CUtexref) { return CUDA_ERROR_INVALID_VALUE; }

CUresult cuTexRefSetArray(CUtexref hTexRef, CUarray hArray, unsigned int Flags) {
  if ((Flags & ~kBindingFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  return with_reference_object(hTexRef, [&](Reference& reference) { return bind_array(reference, hArray, ReferenceSource::array); });
}
CUresult cuTexRefSetMipmappedArray(CUtexref hTexRef, CUmipmappedArray hMipmappedArray, unsigned int Flags) {
  if ((Flags & ~kBindingFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  return with_reference_object(hTexRef,
                               [&](Reference& reference) { return bind_array(reference, hMipmappedArray, ReferenceSource::mipmapped_array); });
}
CUresult cuTexRefGetArray(CUarray* phArray, CUtexref hTexRef) { return get_array(phArray, hTexRef, ReferenceSource::array); }
CUresult cuTexRefGetMipmappedArray(CUmipmappedArray* phMipmappedArray, CUtexref hTexRef) {
  return get_array(phMipmappedArray, hTexRef, ReferenceSource::mipmapped_array);
}

CUresult cuSurfRefSetArray(CUsurfref hSurfRef, CUarray hArray, unsigned int Flags) {
  if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return with_reference_object(hSurfRef, [&](Reference& reference) {
    const Array* array = Arrays::instance().resolve(hArray);
    if (array != nullptr && (array->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST) == 0) return CUDA_ERROR_INVALID_VALUE;
    return bind_array(reference, hArray, ReferenceSource::array);
  });
}
CUresult cuSurfRefGetArray(CUarray* phArray, CUsurfref hSurfRef) { return get_array(phArray, hSurfRef, ReferenceSource::array); }

// The driver binds from an aligned address on; reading at the given one takes the offset.
CUresult cuTexRefSetAddress_v2(size_t* ByteOffset, CUtexref hTexRef, CUdeviceptr dptr, size_t bytes) {
  const std::uint64_t offset_bytes = dptr % limit_of(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  if (ByteOffset == nullptr && offset_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  return with_reference_object(hTexRef, [&](Reference& reference) {
    Space space{};
    if (const CUresult error = classify_fixed(dptr, bytes, Named::device, space); error != CUDA_SUCCESS) return error;
    const CUresult error = References::instance().change(reference, [&](proto::ReferenceSetRecord& set) {
      let_go(set);
      set.source = ReferenceSource::linear;
      set.address = dptr;
      set.size_bytes = bytes;
    });
    if (error == CUDA_SUCCESS && ByteOffset != nullptr) *ByteOffset = offset_bytes;
    return error;
  });
}

CUresult cuTexRefSetAddress2D_v3(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR* desc, CUdeviceptr dptr, size_t Pitch) {
  if (desc == nullptr || dptr % limit_of(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (Pitch % limit_of(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT) != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool is_too_large = desc->Width > limit_of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH) ||
                            desc->Height > limit_of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT) ||
                            Pitch > limit_of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH);
  const std::uint32_t element = element_bytes({desc->Width, desc->Height, 0, desc->Format, desc->NumChannels, 0});
  if (is_too_large || element == 0 || desc->Height == 0 || desc->Width * element > Pitch) return CUDA_ERROR_INVALID_VALUE;
  return with_reference_object(hTexRef, [&](Reference& reference) {
    Space space{};
    if (const CUresult error = classify_fixed(dptr, Pitch * desc->Height, Named::device, space); error != CUDA_SUCCESS) return error;
    return References::instance().change(reference, [&](proto::ReferenceSetRecord& set) {
      let_go(set);
      set.source = ReferenceSource::rows;
      set.address = dptr;
      set.size_bytes = Pitch;
      set.width = desc->Width;
      set.height = desc->Height;
      set.format = static_cast<std::uint32_t>(desc->Format);
      set.channels = desc->NumChannels;
      set.is_set.set(proto::ReferenceSetting::format, false);
    });
  });
}

CUresult cuTexRefGetAddress_v2(CUdeviceptr* pdptr, CUtexref hTexRef) {
  if (pdptr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_reference(hTexRef, [&](const proto::ReferenceSetRecord& set) {
    const ReferenceSource source = set.source;
    if (source != ReferenceSource::linear && source != ReferenceSource::rows) return CUDA_ERROR_INVALID_VALUE;
    *pdptr = set.address;
    return CUDA_SUCCESS;
  });
}

}  // namespace mpsshim::interposer::api
