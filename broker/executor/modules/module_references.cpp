// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/module_references.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "broker/executor/memory/checked_calls.hpp"
#include "proto/references.hpp"

namespace mpsshim::broker {

namespace {

CUarray_format format_of(std::uint32_t value) { return static_cast<CUarray_format>(value); }

CUresult apply_settings(const Driver& driver, CUtexref texture, const proto::ReferenceSetRecord& set) {
  CUresult result = CUDA_SUCCESS;
  const auto apply = [&](proto::ReferenceSetting setting, auto&& call) {
    if (result == CUDA_SUCCESS && set.is_set.has(setting)) result = call();
  };
  apply(proto::ReferenceSetting::format, [&] { return driver->cuTexRefSetFormat(texture, format_of(set.format), static_cast<int>(set.channels)); });
  apply(proto::ReferenceSetting::flags, [&] { return driver->cuTexRefSetFlags(texture, set.flags); });
  for (int dimension = 0; dimension < 3; ++dimension) {
    apply(proto::kAddressModeSettings[dimension],
          [&] { return driver->cuTexRefSetAddressMode(texture, dimension, static_cast<CUaddress_mode>(set.address_mode[dimension])); });
  }
  apply(proto::ReferenceSetting::filter_mode, [&] { return driver->cuTexRefSetFilterMode(texture, static_cast<CUfilter_mode>(set.filter_mode)); });
  apply(proto::ReferenceSetting::mipmap_filter_mode,
        [&] { return driver->cuTexRefSetMipmapFilterMode(texture, static_cast<CUfilter_mode>(set.mipmap_filter_mode)); });
  apply(proto::ReferenceSetting::max_anisotropy, [&] { return driver->cuTexRefSetMaxAnisotropy(texture, set.max_anisotropy); });
  apply(proto::ReferenceSetting::level_bias, [&] { return driver->cuTexRefSetMipmapLevelBias(texture, set.level_bias); });
  apply(proto::ReferenceSetting::level_clamp, [&] { return driver->cuTexRefSetMipmapLevelClamp(texture, set.min_level, set.max_level); });
  apply(proto::ReferenceSetting::border, [&] {
    float border[4];
    std::copy(std::begin(set.border), std::end(set.border), border);
    return driver->cuTexRefSetBorderColor(texture, border);
  });
  return result;
}

CUresult apply_binding(const Driver& driver, const ReferenceHandle& handle, const ReferenceBinding& binding) {
  if (handle.surface != nullptr) return driver->cuSurfRefSetArray(handle.surface, binding.source.array(), 0);
  const CUresult result = apply_settings(driver, handle.texture, binding.set);
  return result == CUDA_SUCCESS ? CheckedCalls(driver).bind(handle.texture, binding.source) : result;
}

}  // namespace

std::size_t ModuleReferences::add(const ReferenceHandle& handle) {
  handles_.push_back(handle);
  return handles_.size() - 1;
}

// Launches that are queued keep the bindings that they came with.
void ModuleReferences::set(std::size_t number, const ReferenceBinding& binding) {
  Bindings changed = bindings_ ? *bindings_ : Bindings{};
  if (changed.size() <= number) changed.resize(number + 1);
  changed[number] = std::make_shared<const ReferenceBinding>(binding);
  bindings_ = std::make_shared<const Bindings>(std::move(changed));
}

CUresult ModuleReferences::apply(const Driver& driver, const Bindings& bindings) {
  applied_.resize(std::max(applied_.size(), bindings.size()));
  for (std::size_t i = 0; i < bindings.size(); ++i) {
    if (bindings[i] == nullptr || bindings[i] == applied_[i]) continue;
    applied_[i] = nullptr;
    if (const CUresult result = apply_binding(driver, handles_[i], *bindings[i]); result != CUDA_SUCCESS) return result;
    applied_[i] = bindings[i];
  }
  return CUDA_SUCCESS;
}

// What the driver does not answer stays 0: a setting that it does not know.
proto::ReferenceLookupReply read_settings(const Driver& driver, CUtexref texture) {
  proto::ReferenceLookupReply read{};
  CUarray_format format{};
  int channels = 0;
  if (driver->cuTexRefGetFormat(&format, &channels, texture) == CUDA_SUCCESS) {
    read.format = static_cast<std::uint32_t>(format);
    read.channels = static_cast<std::uint32_t>(channels);
  }
  unsigned flags = 0;
  if (driver->cuTexRefGetFlags(&flags, texture) == CUDA_SUCCESS) read.flags = flags;
  for (int dimension = 0; dimension < 3; ++dimension) {
    CUaddress_mode mode{};
    if (driver->cuTexRefGetAddressMode(&mode, texture, dimension) == CUDA_SUCCESS) read.address_mode[dimension] = static_cast<std::uint32_t>(mode);
  }
  CUfilter_mode filter{};
  if (driver->cuTexRefGetFilterMode(&filter, texture) == CUDA_SUCCESS) read.filter_mode = static_cast<std::uint32_t>(filter);
  if (driver->cuTexRefGetMipmapFilterMode(&filter, texture) == CUDA_SUCCESS) read.mipmap_filter_mode = static_cast<std::uint32_t>(filter);
  int anisotropy = 0;
  if (driver->cuTexRefGetMaxAnisotropy(&anisotropy, texture) == CUDA_SUCCESS) read.max_anisotropy = static_cast<std::uint32_t>(anisotropy);
  float first = 0;
  float second = 0;
  if (driver->cuTexRefGetMipmapLevelBias(&first, texture) == CUDA_SUCCESS) read.level_bias = first;
  if (driver->cuTexRefGetMipmapLevelClamp(&first, &second, texture) == CUDA_SUCCESS) {
    read.min_level = first;
    read.max_level = second;
  }
  float border[4] = {};
  if (driver->cuTexRefGetBorderColor(border, texture) == CUDA_SUCCESS) std::copy(std::begin(border), std::end(border), std::begin(read.border));
  return read;
}

}  // namespace mpsshim::broker
