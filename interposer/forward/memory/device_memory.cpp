// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/device_memory.hpp"

#include <algorithm>
#include <vector>

#include "interposer/forward/hooks.hpp"

namespace mpsshim::interposer::forward {

DeviceMemory& DeviceMemory::instance() {
  static auto* memory = new DeviceMemory();  // never destroyed
  return *memory;
}

CUresult DeviceMemory::add_chunk(std::uint64_t bytes) {
  proto::ChunkCreateRecord record{};
  record.size_bytes = std::max(bytes, next_chunk_bytes_);
  proto::ChunkCreateReply reply{};
  CUresult error = session().channel().call({}, record, {}, Repeat::never, reply);
  if (error == CUDA_ERROR_OUT_OF_MEMORY && bytes < record.size_bytes) {
    record.size_bytes = bytes;  // what was asked for may still fit
    error = session().channel().call({}, record, {}, Repeat::never, reply);
  }
  if (error != CUDA_SUCCESS) return error;
  if (bytes < next_chunk_bytes_) next_chunk_bytes_ = std::min(next_chunk_bytes_ * 2, kLargestChunkBytes);
  heap_.add_chunk({reply.address, reply.size_bytes});
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::allocate(std::uint64_t bytes, CUcontext context, std::uint64_t& address) {
  const std::lock_guard lock(mutex_);
  std::optional<std::uint64_t> found = heap_.allocate(bytes);
  if (!found) {
    if (const CUresult error = add_chunk(bytes); error != CUDA_SUCCESS) return error;
    found = heap_.allocate(bytes);
    if (!found) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  address = *found;
  owners_[address] = {context, ++last_buffer_id_};
  // The chunk it lies in is no longer one of the empty ones.
  auto chunk = empty_.upper_bound(address);
  if (chunk != empty_.begin() && address - (--chunk)->first < chunk->second) empty_.erase(chunk);
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::free(std::uint64_t address) {
  {
    const std::lock_guard lock(mutex_);
    const std::optional<AddressRange> allocation = heap_.find(address);
    if (!allocation || allocation->address != address) return CUDA_ERROR_INVALID_VALUE;
  }
  // Kernels of this process may still use it. The lock is not held: other threads go on allocating.
  if (const CUresult error = synchronize_all_streams(); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(mutex_);
  const std::optional<AddressRange> chunk = heap_.free(address);
  if (!chunk) return CUDA_ERROR_INVALID_VALUE;  // another thread has freed it meanwhile
  owners_.erase(address);
  if (chunk->size_bytes != 0) release(*chunk);
  return CUDA_SUCCESS;
}

void DeviceMemory::release(AddressRange chunk) {
  std::uint64_t kept = chunk.size_bytes;
  for (const auto& [address, size_bytes] : empty_) kept += size_bytes;
  if (chunk.size_bytes <= kLargestChunkBytes && kept <= kKeptBytes) {
    empty_.emplace(chunk.address, chunk.size_bytes);
    return;
  }
  proto::ChunkReleaseRecord record{};
  record.address = chunk.address;
  if (session().channel().post({}, record) == CUDA_SUCCESS) heap_.remove_chunk(chunk);
}

std::optional<AddressRange> DeviceMemory::find(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  return heap_.find(address);
}

DeviceMemory::Owner DeviceMemory::owner_of(std::uint64_t base) const {
  const std::lock_guard lock(mutex_);
  const auto found = owners_.find(base);
  return found != owners_.end() ? found->second : Owner{};
}

void DeviceMemory::free_all_of(CUcontext context) {
  std::vector<std::uint64_t> ended;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [address, owner] : owners_) {
      if (owner.context == context) ended.push_back(address);
    }
  }
  for (const std::uint64_t address : ended) (void)free(address);
}

}  // namespace mpsshim::interposer::forward
