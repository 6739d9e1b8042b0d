// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/devices.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>

#include "interposer/environment.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/log.hpp"
#include "interposer/settle.hpp"
#include "proto/mutex.hpp"
#include "proto/provision.hpp"
#include "proto/visible_devices.hpp"

namespace mpsshim::interposer {

namespace {

// Written by cuInit before the state says ready.
std::array<std::uint32_t, proto::kMaxDevices> visible;
std::uint32_t visible_count = 0;

// Devices of the sessions, by number. Written under the mutex, the device before the count.
Mutex claim_mutex;
std::atomic<std::uint32_t> session_counter{0};
std::array<std::atomic<CUdevice>, kMaxSessions> session_devices{};

// By broker ordinal, hundredths of a percent; 0: all.
std::array<std::atomic<std::uint32_t>, proto::kMaxDevices> thread_percentages{};
std::array<std::atomic<const std::atomic<std::uint32_t>*>, proto::kMaxDevices> changed_percentages{};
std::array<std::atomic<std::uint32_t>, proto::kMaxDevices> partitions{};  // likewise, their multiprocessors; 0: none

// Nothing where the device has no session.
std::optional<std::uint32_t> find_session(CUdevice device) {
  const std::uint32_t count = session_counter.load(std::memory_order_acquire);
  for (std::uint32_t session = 0; session < count; ++session) {
    if (session_devices[session].load(std::memory_order_relaxed) == device) return session;
  }
  return std::nullopt;
}

bool is_order_of(std::uint32_t count, std::span<const std::uint32_t> order) {
  if (order.size() != count) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (std::ranges::count(order, i) != 1) return false;
  }
  return true;
}

}  // namespace

std::vector<std::uint32_t> select_devices(const proto::DriverFacts& facts, std::string_view list) {
  std::array<proto::DeviceUuid, proto::kMaxDevices> uuids{};
  const std::size_t count = std::min(facts.device_count, proto::kMaxDevices);
  for (std::size_t i = 0; i < count; ++i) std::copy_n(facts.device[i].uuid, uuids[i].size(), uuids[i].begin());
  return proto::select_devices(std::span(uuids).first(count), list);
}

bool follows_device_order() {
  return driver_facts().device_count > 1 && !environment_is_set(Variable::visible_devices) && !environment_has_local_rank();
}

CUresult initialise_devices(std::span<const std::uint32_t> order) {
  const proto::DriverFacts& facts = driver_facts();
  visible_count = 0;
  if (environment_is_set(Variable::visible_devices)) {
    for (const std::uint32_t ordinal : select_devices(facts, environment_value(Variable::visible_devices))) visible[visible_count++] = ordinal;
  } else {
    const bool has_order = is_order_of(facts.device_count, order);
    for (std::uint32_t i = 0; i < facts.device_count; ++i) visible[visible_count++] = has_order ? order[i] : i;
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

std::optional<CUdevice> device_of_ordinal(std::uint32_t broker_ordinal) {
  const auto found = std::find(visible.begin(), visible.begin() + visible_count, broker_ordinal);
  return found != visible.begin() + visible_count ? std::optional(static_cast<CUdevice>(found - visible.begin())) : std::nullopt;
}

const proto::PeerFacts& peer_facts(CUdevice device, CUdevice owner) { return driver_facts().peer[broker_ordinal(device)][broker_ordinal(owner)]; }

void note_thread_percentage(std::uint32_t broker_ordinal, std::uint32_t percentage) {
  if (broker_ordinal < thread_percentages.size()) thread_percentages[broker_ordinal].store(percentage, std::memory_order_relaxed);
}

void watch_thread_percentage(std::uint32_t broker_ordinal, const std::atomic<std::uint32_t>& word) {
  if (broker_ordinal < changed_percentages.size()) changed_percentages[broker_ordinal].store(&word, std::memory_order_release);
}

std::uint32_t thread_percentage(const proto::DeviceFacts& facts) {
  for (std::uint32_t i = 0; i < visible_count; ++i) {
    if (&driver_facts().device[visible[i]] != &facts) continue;
    const auto* const word = changed_percentages[visible[i]].load(std::memory_order_acquire);
    const std::uint32_t changed = word != nullptr ? word->load(std::memory_order_relaxed) : 0;
    return changed != 0 ? changed : thread_percentages[visible[i]].load(std::memory_order_relaxed);
  }
  return 0;
}

bool driver_has_shares() { return driver_facts().driver_version >= proto::kFirstDriverWithShares; }

void note_partition(std::uint32_t broker_ordinal, std::uint32_t multiprocessors) {
  if (broker_ordinal < partitions.size()) partitions[broker_ordinal].store(multiprocessors, std::memory_order_relaxed);
}

std::uint32_t partition_multiprocessors(const proto::DeviceFacts& facts) {
  const std::ptrdiff_t ordinal = &facts - driver_facts().device;
  return ordinal >= 0 && ordinal < static_cast<std::ptrdiff_t>(partitions.size())
             ? partitions[static_cast<std::size_t>(ordinal)].load(std::memory_order_relaxed)
             : 0;
}

std::uint32_t session_of(CUdevice device) {
  if (const auto found = find_session(device)) return *found;
  const std::lock_guard lock(claim_mutex);
  if (const auto found = find_session(device)) return *found;
  const std::uint32_t session = session_counter.load(std::memory_order_relaxed);  // at most one a device, and there are no more devices than sessions
  if (session != 0) several_sessions_began.store(true, std::memory_order_seq_cst);
  session_devices[session].store(device, std::memory_order_relaxed);
  session_counter.store(session + 1, std::memory_order_release);
  return session;
}

bool has_session(CUdevice device) { return find_session(device).has_value(); }

std::uint32_t session_count() { return session_counter.load(std::memory_order_acquire); }

CUdevice session_device() {
  const std::uint32_t session = ActingSession::index();
  return session < session_counter.load(std::memory_order_acquire) ? session_devices[session].load(std::memory_order_relaxed) : 0;
}

CUdevice settle_session_device() {
  if (session_counter.load(std::memory_order_acquire) == 0) (void)session_of(0);
  return session_device();
}

}  // namespace mpsshim::interposer
