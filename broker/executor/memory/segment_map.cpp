// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/memory/segment_map.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include <sys/mman.h>

#include "broker/executor/base/own_memory.hpp"
#include "broker/executor/link/control_link.hpp"

namespace mpsshim::broker {

namespace {

bool lies_beside(const proto::Lease& lease, std::uint64_t address, std::uint64_t size_bytes) {
  if (address == 0 || size_bytes > UINT64_MAX - address) return false;
  return address + size_bytes <= lease.address || address >= lease.address + lease.size_bytes;
}

}  // namespace

SegmentMap::SegmentMap(const Driver& driver, ControlLink& control, std::uint64_t session, proto::Lease pinned_lease)
    : driver_(driver), control_(control), session_(session), pinned_lease_(pinned_lease) {}

CUresult SegmentMap::map(std::uint64_t segment, const Place& place, unsigned flags, const proto::FileDescriptor& file,
                         std::uint64_t& device_address) {
  const auto [purpose, address, is_peers] = place;
  const std::optional<std::size_t> size = proto::sealed_size(file);
  const bool is_pinned = proto::has_own_address(purpose);
  if (!size || *size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (is_pinned && !(is_peers ? lies_beside(pinned_lease_, address, *size)
                              : lies_in(pinned_lease_.address, pinned_lease_.size_bytes, address, *size)))
    return CUDA_ERROR_INVALID_VALUE;
  proto::Mapping mapping = proto::Mapping::map(file, 0, *size, proto::Access::read_write, is_pinned ? address : 0);
  if (!mapping) return CUDA_ERROR_OUT_OF_MEMORY;
  const unsigned register_flags = CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE | (flags & CU_MEMHOSTREGISTER_IOMEMORY);
  CUdeviceptr device = 0;
  bool is_registered = false;
  CUresult result = OwnMemory::enroll(driver_, {mapping.data(), *size}, register_flags, device, is_registered);
  if (!is_registered) return result;
  std::lock_guard lock(mutex_);
  if (result == CUDA_SUCCESS && (segments_.contains(segment) || (!is_pinned && staging_ != nullptr))) result = CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS) {
    // Registered but of no use: released with the session, in a quiet window.
    Segment& unused = segments_[~segment];
    unused = {std::move(mapping), purpose, 0, true};
    return result;
  }
  Segment& added = segments_[segment];
  added = {std::move(mapping), purpose, device, false};
  if (is_pinned) {
    pinned_[address] = *size;
  } else {
    staging_ = &added;
  }
  device_address = device;
  return CUDA_SUCCESS;
}

std::optional<CUdeviceptr> SegmentMap::find(std::uint64_t segment) const {
  std::lock_guard lock(mutex_);
  const auto found = segments_.find(segment);
  if (found == segments_.end() || found->second.forgotten) return std::nullopt;
  return found->second.device_address;
}

bool SegmentMap::forget(std::uint64_t segment) {
  std::lock_guard lock(mutex_);
  const auto found = segments_.find(segment);
  if (found == segments_.end() || found->second.forgotten || found->second.is_claimed) return false;
  found->second.forgotten = true;
  ++losses_;
  if (staging_ == &found->second) staging_ = nullptr;
  if (proto::has_own_address(found->second.purpose)) pinned_.erase(reinterpret_cast<std::uint64_t>(found->second.mapping.data()));
  return true;
}

void SegmentMap::release(std::uint64_t segment) {
  std::byte* pages = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = segments_.find(segment);
    if (found == segments_.end() || !std::exchange(found->second.is_registered, false)) return;
    pages = found->second.mapping.data();
  }
  OwnMemory::dismiss(driver_, pages);
}

// Large ones take milliseconds.
void SegmentMap::unmap(std::uint64_t segment) {
  {
    std::unique_lock lock(mutex_);
    const auto node = segments_.extract(segment);
    lock.unlock();
    if (node.empty()) return;
  }
  control_.send(message::SegmentReleased{.session = session_, .segment = segment});
}

bool SegmentMap::claim(std::uint64_t segment, std::uint64_t most_bytes, std::uint64_t& size_bytes) {
  std::lock_guard lock(mutex_);
  const auto found = segments_.find(segment);
  if (found == segments_.end() || found->second.forgotten || found->second.is_claimed) return false;
  if (found->second.purpose != proto::SegmentPurpose::pinned || found->second.mapping.size() > most_bytes) return false;
  size_bytes = found->second.mapping.size();
  return found->second.is_claimed = true;
}

void SegmentMap::disclaim(std::uint64_t segment) {
  std::lock_guard lock(mutex_);
  segments_.at(segment).is_claimed = false;
}

// The address lies in what the driver keeps free for the session's chunks: it is mapped over, and back again.
CUresult SegmentMap::lay(std::uint64_t segment, std::uint64_t address) {
  std::span<std::byte> pages;
  {
    std::lock_guard lock(mutex_);
    const proto::Mapping& mapping = segments_.at(segment).mapping;
    pages = {mapping.data(), mapping.size()};
  }
  // Of a shared mapping an old size of 0 leaves what there is where it is.
  void* const laid = mremap(pages.data(), 0, pages.size(), MREMAP_MAYMOVE | MREMAP_FIXED, reinterpret_cast<void*>(address));
  if (laid == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  CUdeviceptr device = 0;
  bool is_registered = false;
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE;
  CUresult result = OwnMemory::enroll(driver_, {static_cast<std::byte*>(laid), pages.size()}, kFlags, device, is_registered);
  if (result == CUDA_SUCCESS && device != address) result = CUDA_ERROR_NOT_SUPPORTED;  // kernels know the other one
  std::lock_guard lock(mutex_);
  Segment& owner = segments_.at(segment);
  owner.laid = static_cast<std::byte*>(laid);
  owner.is_laid_registered = is_registered;
  return result;
}

void SegmentMap::release_laid(std::uint64_t segment) {
  std::byte* laid = nullptr;
  {
    std::lock_guard lock(mutex_);
    Segment& owner = segments_.at(segment);
    if (!std::exchange(owner.is_laid_registered, false)) return;
    laid = owner.laid;
  }
  OwnMemory::dismiss(driver_, laid);
}

void SegmentMap::take_up(std::uint64_t segment) {
  std::lock_guard lock(mutex_);
  take_up(segments_.at(segment));
}

void SegmentMap::take_up(Segment& owner) {
  std::byte* const laid = std::exchange(owner.laid, nullptr);
  if (laid == nullptr) return;
  constexpr int kKept = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(laid, owner.mapping.size(), PROT_NONE, kKept, -1, 0) == MAP_FAILED) (void)mprotect(laid, owner.mapping.size(), PROT_NONE);
}

bool SegmentMap::has_laid() const {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(segments_, [](const auto& entry) { return entry.second.laid != nullptr; });
}

bool SegmentMap::release_some(TurnBudget& budget) {
  std::lock_guard lock(mutex_);
  staging_ = nullptr;
  pinned_.clear();
  for (auto& [id, segment] : segments_) {
    if (std::exchange(segment.is_laid_registered, false)) {
      OwnMemory::dismiss(driver_, segment.laid);
      if (budget.look()) return false;
    }
    if (!std::exchange(segment.is_registered, false)) continue;
    OwnMemory::dismiss(driver_, segment.mapping.data());
    if (budget.look()) return false;
  }
  return true;
}

void SegmentMap::unmap_all() {
  std::lock_guard lock(mutex_);
  for (auto& [id, segment] : segments_) take_up(segment);
  segments_.clear();
}

bool SegmentMap::is_leased(std::uint64_t address, std::uint64_t size_bytes) const {
  return lies_in(pinned_lease_.address, pinned_lease_.size_bytes, address, size_bytes);
}

bool SegmentMap::owns_pinned(std::uint64_t address, std::uint64_t size_bytes) const {
  std::lock_guard lock(mutex_);
  return contains(pinned_, address, size_bytes);
}

std::optional<CUdeviceptr> SegmentMap::staging(std::uint64_t offset, std::uint64_t size_bytes) const {
  std::lock_guard lock(mutex_);
  if (staging_ == nullptr) return std::nullopt;
  const std::size_t size = staging_->mapping.size();
  if (offset > size || size_bytes > size - offset) return std::nullopt;
  return staging_->device_address + offset;
}

}  // namespace mpsshim::broker
