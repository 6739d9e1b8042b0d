// SPDX-License-Identifier: Apache-2.0
// Chunks whose addresses mean host memory for a while: managed memory whose preferred place is the host (docs/memory.md). Pages at the same address,
// within what the driver keeps free for the session: it takes both (docs/experiments/2026-11-27-host-memory-at-the-same-address.md).
#include <utility>

#include "broker/executor/memory/memory_map.hpp"

namespace mpsshim::broker {

std::optional<std::uint64_t> MemoryMap::laid_segment(std::uint64_t chunk) const {
  std::lock_guard lock(mutex_);
  const auto found = chunks_.find(chunk);
  if (found == chunks_.end() || found->second.is_moving) return std::nullopt;
  return found->second.segment;
}

bool MemoryMap::leave_device(std::uint64_t chunk, std::uint64_t segment) {
  std::lock_guard lock(mutex_);
  const auto found = chunks_.find(chunk);
  if (found == chunks_.end() || found->second.is_moving || found->second.segment != 0) return false;
  Mapped& mapped = found->second;
  if (!segments_.claim(segment, mapped.size_bytes, mapped.segment_bytes)) return false;
  mapped.segment = segment;
  mapped.is_moving = true;
  usable_.remove(chunk, mapped.size_bytes);
  ++losses_;
  return true;
}

MemoryMap::Mapped& MemoryMap::laid_chunk(std::uint64_t chunk) { return chunks_.at(chunk); }  // one that moves is not forgotten

CUresult MemoryMap::settle_on_host(std::uint64_t chunk) {
  Mapped mapped;
  {
    std::lock_guard lock(mutex_);
    mapped = laid_chunk(chunk);
  }
  CUresult result = driver_->cuMemUnmap(AddressKey(), chunk, mapped.size_bytes);
  if (result != CUDA_SUCCESS) {
    stay_on_device(chunk, CUDA_SUCCESS);
    return result;
  }
  result = segments_.lay(mapped.segment, chunk);
  if (result != CUDA_SUCCESS) {
    release_laid(chunk);
    (void)settle_on_device(chunk);
    return result;
  }
  stay_on_host(chunk);
  return CUDA_SUCCESS;
}

void MemoryMap::stay_on_host(std::uint64_t chunk) {
  std::lock_guard lock(mutex_);
  laid_chunk(chunk).is_moving = false;
}

// The pages alone: what is left of the chunk is nothing, and no copy spans them and a neighbouring chunk.
bool MemoryMap::lies_in_laid(std::uint64_t address, std::uint64_t size_bytes) const {
  const auto chunk = entry_before(chunks_, address);
  if (chunk == chunks_.end() || chunk->second.segment == 0 || chunk->second.is_moving) return false;
  return lies_in(chunk->first, chunk->second.segment_bytes, address, size_bytes);
}

bool MemoryMap::leave_host(std::uint64_t chunk) {
  std::lock_guard lock(mutex_);
  const auto found = chunks_.find(chunk);
  if (found == chunks_.end() || found->second.is_moving || found->second.segment == 0) return false;
  found->second.is_moving = true;
  ++losses_;
  return true;
}

void MemoryMap::release_laid(std::uint64_t chunk) {
  std::uint64_t segment = 0;
  {
    std::lock_guard lock(mutex_);
    segment = laid_chunk(chunk).segment;
  }
  segments_.release_laid(segment);
}

CUresult MemoryMap::settle_on_device(std::uint64_t chunk) {
  Mapped mapped;
  {
    std::lock_guard lock(mutex_);
    mapped = laid_chunk(chunk);
  }
  segments_.take_up(mapped.segment);
  const CUresult result = map_handle(chunk, mapped.size_bytes, mapped.handle);
  stay_on_device(chunk, result);
  return result;
}

// `mapped`: an error where nothing is there, which nobody can use any more.
void MemoryMap::stay_on_device(std::uint64_t chunk, CUresult mapped) {
  std::lock_guard lock(mutex_);
  Mapped& settled = laid_chunk(chunk);
  segments_.disclaim(std::exchange(settled.segment, 0));
  settled.is_moving = mapped != CUDA_SUCCESS;
  if (mapped == CUDA_SUCCESS) usable_.add(chunk, settled.size_bytes);
}

}  // namespace mpsshim::broker
