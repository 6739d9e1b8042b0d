// SPDX-License-Identifier: Apache-2.0
// MemoryMap's leases as they come and go, and its part for memory that the client maps by itself: which addresses are its own, and what may be used
// there.
#include "broker/executor/memory/application_memory.hpp"
#include "broker/executor/memory/memory_map.hpp"

namespace mpsshim::broker {

CUresult MemoryMap::reserve_range(std::uint64_t size_bytes, std::uint64_t alignment, std::uint64_t wanted, std::uint64_t& address) {
  const bool is_power_of_two = (alignment & (alignment - 1)) == 0;
  if (size_bytes == 0 || size_bytes % granularity_ != 0 || alignment % granularity_ != 0 || alignment == 0 || !is_power_of_two) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  constexpr std::size_t kMostRanges = 65'536;
  std::lock_guard lock(mutex_);
  if (ranges_.size() >= kMostRanges) return CUDA_ERROR_OUT_OF_MEMORY;
  const bool is_as_wanted = wanted != 0 && wanted % alignment == 0 && take_room_at(wanted, size_bytes);
  address = is_as_wanted ? wanted : take_room(size_bytes, alignment);
  if (address == 0) return kNoRoomInLeases;
  ranges_.emplace(address, size_bytes);
  return CUDA_SUCCESS;
}

std::optional<std::uint64_t> MemoryMap::find_lease(std::uint64_t address) const {
  std::lock_guard lock(mutex_);
  const auto found = leases_.find(address);
  return found != leases_.end() ? std::optional(found->second.size_bytes) : std::nullopt;
}

void MemoryMap::close_lease(std::uint64_t address) {
  const bool has_mappings = application_->has_mappings(address, find_lease(address).value_or(0));
  std::lock_guard lock(mutex_);
  const auto found = leases_.find(address);
  if (found == leases_.end() || address == device_lease_.address) return;
  found->second.is_closed = true;
  // The client may have ended the range before.
  if (found->second.is_peers && !has_mappings && ranges_.contains(address)) leaving_ranges_.emplace(address, give_up());
}

bool MemoryMap::remove_lease(std::uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = leases_.find(address);
  if (found == leases_.end() || address == device_lease_.address) return false;
  if (!found->second.room.contains(address, found->second.size_bytes)) return false;
  driver_->cuMemAddressFree(AddressKey(), found->second.reserved.address, found->second.reserved.size_bytes);
  leases_.erase(found);
  return true;
}

bool MemoryMap::is_reserved(std::uint64_t address, std::uint64_t size_bytes) const {
  std::lock_guard lock(mutex_);
  const auto range = entry_before(ranges_, address);
  return range != ranges_.end() && !leaving_ranges_.contains(range->first) && lies_in(range->first, range->second, address, size_bytes);
}

bool MemoryMap::leave_range(std::uint64_t address, std::uint64_t size_bytes) {
  if (application_->has_mappings(address, size_bytes)) return false;
  std::lock_guard lock(mutex_);
  const auto range = ranges_.find(address);
  return range != ranges_.end() && range->second == size_bytes && leaving_ranges_.emplace(address, give_up()).second;
}

void MemoryMap::release_ranges(std::uint64_t first, std::uint64_t bytes, std::uint64_t up_to) {
  AddressRanges leaving;
  {
    std::lock_guard lock(mutex_);
    for (auto range = leaving_ranges_.lower_bound(first); range != leaving_ranges_.end() && range->first - first < bytes; ++range) {
      if (range->second <= up_to) leaving.emplace(range->first, ranges_.at(range->first));
    }
  }
  for (const auto& [address, size_bytes] : leaving) application_->unmap_forgotten(address, size_bytes, up_to);
  std::lock_guard lock(mutex_);
  for (const auto& [address, size_bytes] : leaving) {
    const auto range = leaving_ranges_.find(address);
    if (range == leaving_ranges_.end() || range->second > up_to) continue;  // another thread has ended it, and it may be one anew
    leaving_ranges_.erase(range);
    ranges_.erase(address);
    give_room_back(address, size_bytes);
  }
}

void MemoryMap::add_region(std::uint64_t address, std::uint64_t size_bytes) {
  std::lock_guard lock(mutex_);
  if (!usable_.contains(address, size_bytes)) usable_.add(address, size_bytes);
}

void MemoryMap::remove_region(std::uint64_t address, std::uint64_t size_bytes) {
  std::lock_guard lock(mutex_);
  usable_.remove_within(address, size_bytes);
  ++losses_;
}

bool MemoryMap::claim_descriptor() {
  std::lock_guard lock(mutex_);
  if (!has_descriptors()) return refuse_chunk() == CUDA_SUCCESS;
  ++application_pieces_;
  ++all_chunks_;
  return true;
}

void MemoryMap::give_back_descriptor() {
  std::lock_guard lock(mutex_);
  --application_pieces_;
  --all_chunks_;
}

}  // namespace mpsshim::broker
