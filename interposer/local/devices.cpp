// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/devices.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <span>

#include "interposer/environment.hpp"
#include "interposer/log.hpp"
#include "interposer/settle.hpp"
#include "proto/visible_devices.hpp"

namespace mpsshim::interposer {

namespace {

// Written by cuInit before the state says ready.
std::array<std::uint32_t, proto::kMaxDevices> visible;
std::uint32_t visible_count = 0;

constexpr CUdevice kUnclaimed = -1;
std::atomic<CUdevice> claimed{kUnclaimed};

}  // namespace

std::vector<std::uint32_t> select_devices(const proto::DriverFacts& facts, std::string_view list) {
  std::array<proto::DeviceUuid, proto::kMaxDevices> uuids{};
  const std::size_t count = std::min(facts.device_count, proto::kMaxDevices);
  for (std::size_t i = 0; i < count; ++i) std::copy_n(facts.device[i].uuid, uuids[i].size(), uuids[i].begin());
  return proto::select_devices(std::span(uuids).first(count), list);
}

CUresult initialise_devices() {
  const proto::DriverFacts& facts = driver_facts();
  visible_count = 0;
  if (environment_is_set(Variable::visible_devices)) {
    for (const std::uint32_t ordinal : select_devices(facts, environment_value(Variable::visible_devices))) visible[visible_count++] = ordinal;
  } else if (facts.device_count != 0) {
    visible[visible_count++] = 0;  // one, because a session has one: programs that use all they see shall not be refused
  }
  if (visible_count != 0) return CUDA_SUCCESS;
  debug_line(DebugTopic::settle, "No device is visible: the broker has %u, and CUDA_VISIBLE_DEVICES counts the broker's devices.",
             facts.device_count);
  return CUDA_ERROR_NO_DEVICE;
}

int device_count() { return static_cast<int>(visible_count); }

const proto::DeviceFacts* device_facts(CUdevice device) {
  if (device < 0 || device >= device_count()) return nullptr;
  return &driver_facts().device[visible[static_cast<std::size_t>(device)]];
}

std::uint32_t broker_ordinal(CUdevice device) { return visible[static_cast<std::size_t>(device)]; }

CUresult claim_session_device(CUdevice device) {
  CUdevice owner = kUnclaimed;
  if (claimed.compare_exchange_strong(owner, device, std::memory_order_relaxed) || owner == device) return CUDA_SUCCESS;
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    log_line(
        "A context on device %d was refused: this process already uses device %d of the broker, and a session has one device; run it "
        "with CUDA_VISIBLE_DEVICES naming one.",
        device, owner);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUdevice session_device() { return std::max(claimed.load(std::memory_order_relaxed), 0); }

CUdevice settle_session_device() {
  CUdevice owner = kUnclaimed;
  return claimed.compare_exchange_strong(owner, 0, std::memory_order_relaxed) ? 0 : owner;
}

CUresult check_session_device(CUdevice device) {
  if (device_facts(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return device == session_device() ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace mpsshim::interposer
