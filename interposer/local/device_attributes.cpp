// SPDX-License-Identifier: Apache-2.0
// A device's attributes: the executor's driver speaks, but for those of proto/spec/device_attributes.toml.
#include <algorithm>
#include <array>

#include "interposer/local/devices.hpp"
#include "proto/provision.hpp"

namespace mpsshim::interposer {

namespace {

struct Override {
  int attribute;
  int value;
};

constexpr std::array kOverrides = {
#define MPSSHIM_DEVICE_ATTRIBUTE(number, value) Override{number, value},
#include "gen/device_attributes.inc"
#undef MPSSHIM_DEVICE_ATTRIBUTE
};

}  // namespace

CUresult device_attribute(const proto::DeviceFacts& facts, int attribute, int& value) {
  if (attribute <= 0 || attribute >= static_cast<int>(proto::kMaxDeviceAttribute)) return CUDA_ERROR_INVALID_VALUE;
  const auto status = static_cast<CUresult>(facts.attribute_status[attribute]);
  if (status != CUDA_SUCCESS) return status;
  const auto row = std::lower_bound(kOverrides.begin(), kOverrides.end(), attribute,
                                    [](const Override& candidate, int wanted) { return candidate.attribute < wanted; });
  const bool overridden = row != kOverrides.end() && row->attribute == attribute;
  value = overridden ? row->value : facts.attribute[attribute];
  if (attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT && value > 0) {
    if (const std::uint32_t own = partition_multiprocessors(facts); own != 0) return value = static_cast<int>(own), CUDA_SUCCESS;
    const int major = facts.attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
    value = static_cast<int>(proto::provisioned_multiprocessors(static_cast<std::uint32_t>(value), major, thread_percentage(facts)));
  }
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer
