// SPDX-License-Identifier: Apache-2.0
// The devices this process sees: the broker's, filtered and renumbered by CUDA_VISIBLE_DEVICES as NVIDIA's driver does it; the first where that is
// not set. Fixed by cuInit and never changed afterwards, so reading takes no lock.
//
// Two numberings: a CUdevice is this process's ordinal; a broker ordinal indexes proto::DriverFacts and is what proto::Attach carries.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "gen/cuda_api.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::interposer {

// Broker ordinals in the order of `list` (proto/visible_devices.hpp).
[[nodiscard]] std::vector<std::uint32_t> select_devices(const proto::DriverFacts& facts, std::string_view list);

// For cuInit. CUDA_ERROR_NO_DEVICE if nothing is left to see.
[[nodiscard]] CUresult initialise_devices();

[[nodiscard]] int device_count();
// Null if there is no such device.
[[nodiscard]] const proto::DeviceFacts* device_facts(CUdevice device);
[[nodiscard]] std::uint32_t broker_ordinal(CUdevice device);

// What this process answers for an attribute: the broker's fact, or an override (device_attributes.cpp).
[[nodiscard]] CUresult device_attribute(const proto::DeviceFacts& facts, int attribute, int& value);

// A session has one device. The first context that becomes active decides; another device is CUDA_ERROR_NOT_SUPPORTED, with a line once.
[[nodiscard]] CUresult claim_session_device(CUdevice device);
// The claimed device, or the first one.
[[nodiscard]] CUdevice session_device();
// The same, claimed from now on: a session opens on it.
[[nodiscard]] CUdevice settle_session_device();
// CUDA_ERROR_INVALID_DEVICE for none, CUDA_ERROR_NOT_SUPPORTED for another one than the session\'s.
[[nodiscard]] CUresult check_session_device(CUdevice device);

}  // namespace mpsshim::interposer
