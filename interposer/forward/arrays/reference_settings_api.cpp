// SPDX-License-Identifier: Apache-2.0
// How texture references read: formats, addressing, filtering, levels (CUDA Driver API manual, "Texture Reference Management [DEPRECATED]").
#include <algorithm>
#include <iterator>

#include "gen/api_declarations.hpp"
#include "interposer/forward/arrays/arrays.hpp"
#include "interposer/forward/arrays/reference_access.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

constexpr int kDimensions = 3;
constexpr unsigned kKnownFlags =
    CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION | CU_TRSF_SEAMLESS_CUBEMAP;

bool is_filter(CUfilter_mode mode) { return mode == CU_TR_FILTER_MODE_POINT || mode == CU_TR_FILTER_MODE_LINEAR; }

// `setting`: what is set from now on; `change` sets it.
template <typename Change>
CUresult set(CUtexref handle, proto::ReferenceSetting setting, Change&& change) {
  return with_reference_object(handle, [&](Reference& reference) {
    return References::instance().change(reference, [&](proto::ReferenceSetRecord& set) {
      set.is_set.set(setting);
      change(set);
    });
  });
}

template <typename Value, typename Read>
CUresult get(Value* value, CUtexref handle, Read&& read) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_reference(handle, [&](const proto::ReferenceSetRecord& set) {
    *value = static_cast<Value>(read(set));
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUresult cuTexRefSetFormat(CUtexref hTexRef, CUarray_format fmt, int NumPackedComponents) {
  const bool is_count = NumPackedComponents == 1 || NumPackedComponents == 2 || NumPackedComponents == 4;
  if (!is_count || element_bytes({1, 1, 0, fmt, static_cast<unsigned>(NumPackedComponents), 0}) == 0) return CUDA_ERROR_INVALID_VALUE;
  return set(hTexRef, proto::ReferenceSetting::format, [&](proto::ReferenceSetRecord& set) {
    set.format = static_cast<std::uint32_t>(fmt);
    set.channels = static_cast<std::uint32_t>(NumPackedComponents);
  });
}
CUresult cuTexRefGetFormat(CUarray_format* pFormat, int* pNumChannels, CUtexref hTexRef) {
  if (pFormat == nullptr || pNumChannels == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_reference(hTexRef, [&](const proto::ReferenceSetRecord& set) {
    *pFormat = static_cast<CUarray_format>(set.format);
    *pNumChannels = static_cast<int>(set.channels);
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetFlags(CUtexref hTexRef, unsigned int Flags) {
  if ((Flags & ~kKnownFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  return set(hTexRef, proto::ReferenceSetting::flags, [&](proto::ReferenceSetRecord& set) { set.flags = Flags; });
}
CUresult cuTexRefGetFlags(unsigned int* pFlags, CUtexref hTexRef) {
  return get(pFlags, hTexRef, [](const proto::ReferenceSetRecord& set) { return set.flags; });
}

CUresult cuTexRefSetAddressMode(CUtexref hTexRef, int dim, CUaddress_mode am) {
  if (dim < 0 || dim >= kDimensions || am < CU_TR_ADDRESS_MODE_WRAP || am > CU_TR_ADDRESS_MODE_BORDER) return CUDA_ERROR_INVALID_VALUE;
  return set(hTexRef, proto::kAddressModeSettings[dim],
             [&](proto::ReferenceSetRecord& set) { set.address_mode[dim] = static_cast<std::uint32_t>(am); });
}
CUresult cuTexRefGetAddressMode(CUaddress_mode* pam, CUtexref hTexRef, int dim) {
  if (dim < 0 || dim >= kDimensions) return CUDA_ERROR_INVALID_VALUE;
  return get(pam, hTexRef, [&](const proto::ReferenceSetRecord& set) { return set.address_mode[dim]; });
}

CUresult cuTexRefSetFilterMode(CUtexref hTexRef, CUfilter_mode fm) {
  if (!is_filter(fm)) return CUDA_ERROR_INVALID_VALUE;
  return set(hTexRef, proto::ReferenceSetting::filter_mode,
             [&](proto::ReferenceSetRecord& set) { set.filter_mode = static_cast<std::uint32_t>(fm); });
}
CUresult cuTexRefGetFilterMode(CUfilter_mode* pfm, CUtexref hTexRef) {
  return get(pfm, hTexRef, [](const proto::ReferenceSetRecord& set) { return set.filter_mode; });
}

CUresult cuTexRefSetMipmapFilterMode(CUtexref hTexRef, CUfilter_mode fm) {
  if (!is_filter(fm)) return CUDA_ERROR_INVALID_VALUE;
  return set(hTexRef, proto::ReferenceSetting::mipmap_filter_mode,
             [&](proto::ReferenceSetRecord& set) { set.mipmap_filter_mode = static_cast<std::uint32_t>(fm); });
}
CUresult cuTexRefGetMipmapFilterMode(CUfilter_mode* pfm, CUtexref hTexRef) {
  return get(pfm, hTexRef, [](const proto::ReferenceSetRecord& set) { return set.mipmap_filter_mode; });
}

CUresult cuTexRefSetMipmapLevelBias(CUtexref hTexRef, float bias) {
  return set(hTexRef, proto::ReferenceSetting::level_bias, [&](proto::ReferenceSetRecord& set) { set.level_bias = bias; });
}
CUresult cuTexRefGetMipmapLevelBias(float* pbias, CUtexref hTexRef) {
  return get(pbias, hTexRef, [](const proto::ReferenceSetRecord& set) { return set.level_bias; });
}

CUresult cuTexRefSetMipmapLevelClamp(CUtexref hTexRef, float minMipmapLevelClamp, float maxMipmapLevelClamp) {
  return set(hTexRef, proto::ReferenceSetting::level_clamp, [&](proto::ReferenceSetRecord& set) {
    set.min_level = minMipmapLevelClamp;
    set.max_level = maxMipmapLevelClamp;
  });
}
CUresult cuTexRefGetMipmapLevelClamp(float* pminMipmapLevelClamp, float* pmaxMipmapLevelClamp, CUtexref hTexRef) {
  if (pminMipmapLevelClamp == nullptr || pmaxMipmapLevelClamp == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_reference(hTexRef, [&](const proto::ReferenceSetRecord& set) {
    *pminMipmapLevelClamp = set.min_level;
    *pmaxMipmapLevelClamp = set.max_level;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexRefSetMaxAnisotropy(CUtexref hTexRef, unsigned int maxAniso) {
  return set(hTexRef, proto::ReferenceSetting::max_anisotropy, [&](proto::ReferenceSetRecord& set) { set.max_anisotropy = maxAniso; });
}
CUresult cuTexRefGetMaxAnisotropy(int* pmaxAniso, CUtexref hTexRef) {
  return get(pmaxAniso, hTexRef, [](const proto::ReferenceSetRecord& set) { return set.max_anisotropy; });
}

CUresult cuTexRefSetBorderColor(CUtexref hTexRef, float* pBorderColor) {
  if (pBorderColor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set(hTexRef, proto::ReferenceSetting::border,
             [&](proto::ReferenceSetRecord& set) { std::copy_n(pBorderColor, std::size(set.border), std::begin(set.border)); });
}
CUresult cuTexRefGetBorderColor(float* pBorderColor, CUtexref hTexRef) {
  if (pBorderColor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_reference(hTexRef, [&](const proto::ReferenceSetRecord& set) {
    std::copy(std::begin(set.border), std::end(set.border), pBorderColor);
    return CUDA_SUCCESS;
  });
}

}  // namespace mpsshim::interposer::api
