// SPDX-License-Identifier: Apache-2.0
// Which session may use which addresses of the window. The window's lower two thirds are device ranges, the upper third is pinned memory;
// each third is cut into slots, a lease is a slot less a guard gap at both ends. A slot that comes back is handed out again as late as
// possible, so that a stale pointer faults rather than hits a newcomer.
//
// Device slots: where 512 slots that hold the whole device fit, all are so large. On larger devices half the addresses are slots that hold
// the whole device (given first), the other half smaller ones, so that every session still gets a lease.
// Owned by SessionRanges; the control process's thread alone calls it. It trusts its caller.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/handshake.hpp"

namespace mpsshim::broker::control {

struct AddressWindow {
  std::uint64_t begin = 0x2000'0000'0000;
  std::uint64_t end = 0x5000'0000'0000;
};
// "0x200000000000-0x500000000000"; nullopt if malformed, not page-aligned, or too small to hold kMaxLeases leases of 1 GiB.
[[nodiscard]] std::optional<AddressWindow> parse_window(const std::string& text);

[[nodiscard]] inline bool same_range(const proto::Lease& a, const proto::Lease& b) {
  return a.address == b.address && a.size_bytes == b.size_bytes;
}

inline constexpr std::uint32_t kMaxLeases = 512;
inline constexpr std::uint64_t kLeaseGuardBytes = 2ull << 20;

// Slots of one size.
class SlotPool {
 public:
  SlotPool(std::uint64_t begin, std::uint64_t slot_bytes, std::uint32_t count);
  // The slot free for longest whose lease is not among `refused`; nullopt if there is none.
  [[nodiscard]] std::optional<proto::Lease> take(std::span<const proto::Lease> refused);
  // False if that one is not free.
  [[nodiscard]] bool claim(const proto::Lease& lease);
  // False if the lease is not of this pool.
  bool give_back(const proto::Lease& lease);
  [[nodiscard]] std::size_t free_count() const { return free_.size(); }
  [[nodiscard]] std::uint64_t lease_bytes() const { return slot_bytes_ - 2 * kLeaseGuardBytes; }

 private:
  std::uint64_t begin_;
  std::uint64_t slot_bytes_;
  std::uint64_t end_;
  std::deque<std::uint64_t> free_;  // addresses of slots, free for longest first
};

class LeaseTable {
 public:
  LeaseTable(const AddressWindow& window, std::uint64_t device_memory_bytes);
  [[nodiscard]] std::optional<proto::Lease> take_device(std::span<const proto::Lease> refused = {});
  // A further device range, of at least `size_bytes`, for one of `sessions`: the smallest that is large enough, and only while a first range is
  // left for each session that may still come.
  [[nodiscard]] std::optional<proto::Lease> take_more(std::uint64_t size_bytes, std::size_t sessions);
  [[nodiscard]] std::optional<proto::Lease> take_pinned(std::span<const proto::Lease> refused = {});
  // Takes exactly that one, for a session that was handed over with it. False if it is not of this table, or taken.
  [[nodiscard]] bool claim(const proto::Lease& lease);
  void give_back(const proto::Lease& lease);

 private:
  std::vector<SlotPool> device_;  // in order of preference
  SlotPool pinned_;
};

}  // namespace mpsshim::broker::control
