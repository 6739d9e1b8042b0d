// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/lease_table.hpp"

#include <algorithm>
#include <bit>
#include <charconv>

namespace mpsshim::broker::control {

namespace {

constexpr std::uint64_t kGiB = 1ull << 30;

std::optional<std::uint64_t> parse_address(std::string_view text) {
  if (text.starts_with("0x") || text.starts_with("0X")) text.remove_prefix(2);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::uint64_t device_part_end(const AddressWindow& window) {
  const std::uint64_t two_thirds = (window.end - window.begin) / 3 * 2;
  return window.begin + two_thirds / kGiB * kGiB;
}

std::vector<SlotPool> device_pools(const AddressWindow& window, std::uint64_t device_memory_bytes) {
  const std::uint64_t bytes = device_part_end(window) - window.begin;
  const std::uint64_t slot_for_all = std::bit_floor(bytes / kMaxLeases);
  const std::uint64_t slot_for_device = std::bit_ceil(device_memory_bytes + 2 * kLeaseGuardBytes);
  std::vector<SlotPool> pools;
  if (slot_for_device <= slot_for_all) {
    pools.emplace_back(window.begin, slot_for_all, kMaxLeases);
    return pools;
  }
  const std::uint64_t half = bytes / 2;
  const auto large = static_cast<std::uint32_t>(half / slot_for_device);
  if (large > 0) pools.emplace_back(window.begin, slot_for_device, large);
  const std::uint64_t rest_begin = window.begin + large * slot_for_device;
  const std::uint64_t small_slot = std::bit_floor((device_part_end(window) - rest_begin) / kMaxLeases);
  pools.emplace_back(rest_begin, small_slot, kMaxLeases);
  return pools;
}

SlotPool pinned_pool(const AddressWindow& window) {
  const std::uint64_t begin = device_part_end(window);
  return SlotPool(begin, std::bit_floor((window.end - begin) / kMaxLeases), kMaxLeases);
}

}  // namespace

std::optional<AddressWindow> parse_window(const std::string& text) {
  const std::size_t dash = text.find('-');
  if (dash == std::string::npos) return std::nullopt;
  const auto begin = parse_address(std::string_view(text).substr(0, dash));
  const auto end = parse_address(std::string_view(text).substr(dash + 1));
  if (!begin || !end || *begin % kGiB != 0 || *end % kGiB != 0 || *begin == 0 || *begin >= *end) return std::nullopt;
  if (*end > (1ull << 47)) return std::nullopt;  // x86-64 user space ends there
  if ((*end - *begin) / 3 / kMaxLeases < 2 * kGiB) return std::nullopt;
  return AddressWindow{*begin, *end};
}

SlotPool::SlotPool(std::uint64_t begin, std::uint64_t slot_bytes, std::uint32_t count)
    : begin_(begin), slot_bytes_(slot_bytes), end_(begin + slot_bytes * count) {
  for (std::uint32_t i = 0; i < count; ++i) free_.push_back(begin + i * slot_bytes);
}

std::optional<proto::Lease> SlotPool::take(std::span<const proto::Lease> refused) {
  for (auto slot = free_.begin(); slot != free_.end(); ++slot) {
    const proto::Lease lease{*slot + kLeaseGuardBytes, lease_bytes()};
    if (std::ranges::any_of(refused, [&](const proto::Lease& other) { return same_range(other, lease); })) continue;
    free_.erase(slot);
    return lease;
  }
  return std::nullopt;
}

bool SlotPool::claim(const proto::Lease& lease) {
  const auto slot = std::ranges::find(free_, lease.address - kLeaseGuardBytes);
  if (slot == free_.end() || lease.size_bytes != lease_bytes()) return false;
  free_.erase(slot);
  return true;
}

bool SlotPool::give_back(const proto::Lease& lease) {
  if (lease.address < begin_ || lease.address >= end_) return false;
  free_.push_back(lease.address - kLeaseGuardBytes);
  return true;
}

LeaseTable::LeaseTable(const AddressWindow& window, std::uint64_t device_memory_bytes)
    : device_(device_pools(window, device_memory_bytes)), pinned_(pinned_pool(window)) {}

std::optional<proto::Lease> LeaseTable::take_device(std::span<const proto::Lease> refused) {
  for (SlotPool& pool : device_) {
    if (auto lease = pool.take(refused)) return lease;
  }
  return std::nullopt;
}

std::optional<proto::Lease> LeaseTable::take_more(std::uint64_t size_bytes, std::size_t sessions) {
  std::size_t free = 0;
  for (const SlotPool& pool : device_) free += pool.free_count();
  if (free + sessions <= kMaxLeases) return std::nullopt;
  for (auto pool = device_.rbegin(); pool != device_.rend(); ++pool) {
    if (pool->lease_bytes() < size_bytes) continue;
    if (auto lease = pool->take({})) return lease;
  }
  return std::nullopt;
}

std::optional<proto::Lease> LeaseTable::take_pinned(std::span<const proto::Lease> refused) { return pinned_.take(refused); }

bool LeaseTable::claim(const proto::Lease& lease) {
  if (lease.size_bytes == 0) return true;
  return std::ranges::any_of(device_, [&](SlotPool& pool) { return pool.claim(lease); }) || pinned_.claim(lease);
}

void LeaseTable::give_back(const proto::Lease& lease) {
  if (lease.size_bytes == 0) return;
  for (SlotPool& pool : device_) {
    if (pool.give_back(lease)) return;
  }
  pinned_.give_back(lease);
}

}  // namespace mpsshim::broker::control
