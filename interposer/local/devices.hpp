// SPDX-License-Identifier: Apache-2.0
// The devices this process sees: the broker's, filtered and renumbered by CUDA_VISIBLE_DEVICES as NVIDIA's driver does it, or in the order that the
// broker tells a process which names none. Fixed by cuInit and never changed afterwards, so reading takes no lock.
//
// Two numberings: a CUdevice is this process's ordinal; a broker ordinal indexes proto::DriverFacts and is what proto::Attach carries.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "gen/cuda_api.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::interposer {

// Broker ordinals in the order of `list` (proto/visible_devices.hpp).
[[nodiscard]] std::vector<std::uint32_t> select_devices(const proto::DriverFacts& facts, std::string_view list);

// For cuInit. CUDA_ERROR_NO_DEVICE if nothing is left to see. `order`: of broker ordinals, for a process that names no device; anything but every
// one of them once is none, and their own order holds.
[[nodiscard]] CUresult initialise_devices(std::span<const std::uint32_t> order = {});
// Whether it matters to this process in which order the broker has its devices: there are several, it names none, and no launcher has numbered it.
[[nodiscard]] bool follows_device_order();

[[nodiscard]] int device_count();
// Null if there is no such device.
[[nodiscard]] const proto::DeviceFacts* device_facts(CUdevice device);
[[nodiscard]] std::uint32_t broker_ordinal(CUdevice device);
// The other way round; nothing where this process does not see it.
[[nodiscard]] std::optional<CUdevice> device_of_ordinal(std::uint32_t broker_ordinal);
// What the hardware lets `device` do with the memory of `owner`; both exist.
[[nodiscard]] const proto::PeerFacts& peer_facts(CUdevice device, CUdevice owner);

// What part of that device's multiprocessors the broker says that this process has, in hundredths of a percent (proto/provision.hpp). Any thread.
void note_thread_percentage(std::uint32_t broker_ordinal, std::uint32_t percentage);
// Where the broker says it anew, should it change (ChannelHeader::thread_percentage); for the process's life.
void watch_thread_percentage(std::uint32_t broker_ordinal, const std::atomic<std::uint32_t>& word);
[[nodiscard]] std::uint32_t thread_percentage(const proto::DeviceFacts& facts);  // 0: all

// Whether the driver makes contexts with a part of the multiprocessors (proto::kFirstDriverWithShares).
[[nodiscard]] bool driver_has_shares();

// How many multiprocessors its static partition of that device has; 0: it has none. Noted by cuInit.
void note_partition(std::uint32_t broker_ordinal, std::uint32_t multiprocessors);
[[nodiscard]] std::uint32_t partition_multiprocessors(const proto::DeviceFacts& facts);

// What this process answers for an attribute: the broker's fact, or an override (device_attributes.cpp).
[[nodiscard]] CUresult device_attribute(const proto::DeviceFacts& facts, int attribute, int& value);

// The number of the device's session, which begins with that where there is none: the process works on one device more. A session opens when
// something is asked of it.
[[nodiscard]] std::uint32_t session_of(CUdevice device);
[[nodiscard]] bool has_session(CUdevice device);
[[nodiscard]] std::uint32_t session_count();
// The device of the session that the calling thread acts for; the first one, where there is no session.
[[nodiscard]] CUdevice session_device();
// The same, which begins there: it opens.
[[nodiscard]] CUdevice settle_session_device();

}  // namespace mpsshim::interposer
