// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/devices.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>

#include "interposer/environment.hpp"
#include "interposer/log.hpp"
#include "interposer/settle.hpp"

namespace mpsshim::interposer {

namespace {

// Written by cuInit before the state says ready.
std::array<std::uint32_t, proto::kMaxDevices> visible;
std::uint32_t visible_count = 0;

constexpr CUdevice kUnclaimed = -1;
std::atomic<CUdevice> claimed{kUnclaimed};

constexpr std::string_view kUuidPrefix = "GPU-";

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Does the UUID begin with these hexadecimal digits? Dashes stand anywhere.
bool uuid_begins(const proto::DeviceFacts& device, std::string_view digits) {
  std::size_t position = 0;
  for (const char c : digits) {
    if (c == '-') continue;
    const int digit = hex_digit(c);
    if (digit < 0 || position >= 2 * sizeof device.uuid) return false;
    const int byte = device.uuid[position / 2];
    if (digit != (position % 2 == 0 ? byte >> 4 : byte & 0xf)) return false;
    ++position;
  }
  return position > 0;
}

// Broker ordinal, or -1 if the entry names no device or several.
int find_device(const proto::DriverFacts& facts, std::string_view entry) {
  if (entry.substr(0, kUuidPrefix.size()) == kUuidPrefix) {
    int found = -1;
    for (std::uint32_t i = 0; i < facts.device_count; ++i) {
      if (!uuid_begins(facts.device[i], entry.substr(kUuidPrefix.size()))) continue;
      if (found >= 0) return -1;
      found = static_cast<int>(i);
    }
    return found;
  }
  std::uint32_t index = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (error != std::errc{} || end != entry.data() + entry.size() || index >= facts.device_count) return -1;
  return static_cast<int>(index);
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

std::vector<std::uint32_t> select_devices(const proto::DriverFacts& facts, std::string_view list) {
  std::vector<std::uint32_t> selected;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const int device = find_device(facts, trimmed(list.substr(0, comma)));
    if (device < 0) break;
    const auto ordinal = static_cast<std::uint32_t>(device);
    if (std::find(selected.begin(), selected.end(), ordinal) != selected.end()) break;
    selected.push_back(ordinal);
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return selected;
}

CUresult initialise_devices() {
  const proto::DriverFacts& facts = driver_facts();
  visible_count = 0;
  if (environment_is_set(Variable::visible_devices)) {
    for (const std::uint32_t ordinal : select_devices(facts, environment_value(Variable::visible_devices))) visible[visible_count++] = ordinal;
  } else {
    for (std::uint32_t i = 0; i < facts.device_count; ++i) visible[visible_count++] = i;
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
