// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/device/devices.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "broker/cpudriver/config.hpp"
#include "proto/visible_devices.hpp"

namespace mpsshim::cpudriver {
namespace {

std::vector<std::uint32_t> visible_devices() {
  const unsigned all = Config::get().devices;
  if (const char* list = std::getenv("CUDA_VISIBLE_DEVICES")) {
    std::vector<proto::DeviceUuid> uuids(all);
    for (unsigned i = 0; i < all; ++i) std::memcpy(uuids[i].data(), device_uuid(i).bytes, sizeof(CUuuid::bytes));
    return proto::select_devices(uuids, list);
  }
  std::vector<std::uint32_t> visible(all);
  std::iota(visible.begin(), visible.end(), 0u);
  return visible;
}

}  // namespace

Devices& Devices::get() {
  static Devices& devices = *new Devices;  // leaked: workers may ask while static destructors run
  return devices;
}

Devices::Devices() : visible_(visible_devices()) {}

CUresult Devices::claim(CUdevice device) {
  CUdevice owner = kNone;
  if (used_.compare_exchange_strong(owner, device) || owner == device) return CUDA_SUCCESS;
  std::fprintf(stderr,
               "cuda_cpu: no context is made on device %d: this process computes on device %d, and the CPU driver has one a process. Through a "
               "broker each device has a process of its own.\n",
               device, owner);
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUdevice Devices::used() const { return std::max(used_.load(), 0); }

CUuuid device_uuid(unsigned machine_index) {
  CUuuid uuid;
  char text[sizeof(uuid.bytes) + 1];
  std::snprintf(text, sizeof text, "cpu%05u-mpsshim", machine_index);
  std::memcpy(uuid.bytes, text, sizeof(uuid.bytes));
  return uuid;
}

}  // namespace mpsshim::cpudriver
