// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/device_memory.hpp"

#include "interposer/forward/hooks.hpp"
#include "interposer/forward/memory/allocation_owner.hpp"
#include "interposer/forward/peer_access.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::uint64_t kMostLostBytes = 32ull << 20;  // to the ends of chunks with one allocation, at a time

}  // namespace

DeviceMemory& DeviceMemory::instance() {
  return PerSession<DeviceMemory>::get([] { return new DeviceMemory(); });
}

bool DeviceMemory::try_allocate(std::uint64_t bytes, CUcontext context, std::uint64_t& address) {
  const std::lock_guard lock(mutex_);
  const std::optional<std::uint64_t> found = arena_.allocate(bytes, {context, next_buffer_id()});
  address = found.value_or(0);
  return found.has_value();
}

CUresult DeviceMemory::allocate(std::uint64_t bytes, CUcontext context, std::uint64_t& address) {
  if (try_allocate(bytes, context, address)) return CUDA_SUCCESS;
  const std::lock_guard growing(growth_mutex_);
  // Another thread may take what is added before this one does.
  while (!try_allocate(bytes, context, address)) {
    if (const CUresult error = add_chunk(bytes); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

std::uint64_t DeviceMemory::allocate_alone(std::uint64_t bytes) {
  const std::uint64_t chunk_bytes = DeviceArena::exact_chunk_bytes(bytes);
  const std::uint64_t lost = chunk_bytes - bytes;
  const std::lock_guard growing(growth_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (alone_lost_bytes_ + lost > kMostLostBytes) return 0;
  }
  AddressRange chunk;
  if (make_chunk(chunk_bytes, chunk_bytes, chunk) != CUDA_SUCCESS) return 0;
  const std::lock_guard lock(mutex_);
  alone_.emplace(chunk.address, Alone{chunk.size_bytes, lost});
  alone_lost_bytes_ += lost;
  return chunk.address;
}

CUresult DeviceMemory::add_chunk(std::uint64_t bytes) {
  const std::uint64_t exact = DeviceArena::exact_chunk_bytes(bytes);
  std::uint64_t wanted = 0;
  {
    const std::lock_guard lock(mutex_);
    wanted = arena_.chunk_bytes_for(bytes);
  }
  AddressRange chunk;
  if (const CUresult error = make_chunk(wanted, exact, chunk); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(mutex_);
  arena_.add_chunk(chunk, bytes);
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::make_chunk(std::uint64_t wanted, std::uint64_t exact, AddressRange& chunk) {
  CUresult error = create_chunk_growing(wanted, chunk);
  if (error == CUDA_ERROR_OUT_OF_MEMORY) {
    // The device is full: what is kept for later goes first, and what was asked for may still fit.
    std::vector<AddressRange> empty;
    {
      const std::lock_guard lock(mutex_);
      empty = arena_.take_empty();
    }
    if (const CUresult posted = release(empty); posted != CUDA_SUCCESS) return posted;
    if (!empty.empty() || exact < wanted) error = create_chunk_growing(exact, chunk);
  }
  if (error != CUDA_SUCCESS) return error;
  DeviceLeases::instance().chunk_added(chunk.address);
  if (const CUresult reached = PeerAccess::instance().chunk_added(chunk); reached != CUDA_SUCCESS) {
    (void)release({&chunk, 1});
    return reached;
  }
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::create_chunk(std::uint64_t chunk_bytes, AddressRange& chunk) {
  proto::ChunkCreateRecord record{};
  record.size_bytes = chunk_bytes;
  proto::ChunkCreateReply reply{};
  const CUresult error = session().channel().call({}, record, {}, reply);
  chunk = {reply.address, reply.size_bytes};
  return error;
}

CUresult DeviceMemory::create_chunk_growing(std::uint64_t chunk_bytes, AddressRange& chunk) {
  const CUresult error = create_chunk(chunk_bytes, chunk);
  if (error != CUDA_ERROR_MAP_FAILED) return error;
  // The device may have the memory, but no range of addresses has room for it.
  if (const CUresult added = DeviceLeases::instance().add(chunk_bytes); added != CUDA_SUCCESS) return added;
  const CUresult again = create_chunk(chunk_bytes, chunk);
  return again == CUDA_ERROR_MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : again;
}

CUresult DeviceMemory::release(std::span<const AddressRange> chunks) {
  for (const AddressRange& chunk : chunks) {
    PeerAccess::instance().chunk_leaves(chunk.address);
    proto::ChunkReleaseRecord record{};
    record.address = chunk.address;
    if (const CUresult error = session().channel().post({}, record); error != CUDA_SUCCESS) return error;
    DeviceLeases::instance().chunk_removed(chunk.address);
  }
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::free(std::uint64_t address) {
  // Kernels of this process may still use it. The lock is not held: other threads go on allocating.
  if (const CUresult error = synchronize_all_streams(); error != CUDA_SUCCESS) return error;
  return give_back(address);
}

CUresult DeviceMemory::give_back(std::uint64_t address) {
  std::vector<AddressRange> leaving;
  {
    const std::lock_guard lock(mutex_);
    if (const auto alone = alone_.find(address); alone != alone_.end()) {
      leaving.push_back({address, alone->second.chunk_bytes});
      alone_lost_bytes_ -= alone->second.lost_bytes;
      alone_.erase(alone);
    } else if (!arena_.free(address, leaving)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  // A chunk whose release cannot be posted belongs to a session that has ended; the allocation is free all the same.
  if (!leaving.empty()) {
    const std::lock_guard growing(growth_mutex_);
    (void)release(leaving);
  }
  return CUDA_SUCCESS;
}

bool DeviceMemory::release_empty() {
  const std::lock_guard growing(growth_mutex_);
  std::vector<AddressRange> empty;
  {
    const std::lock_guard lock(mutex_);
    empty = arena_.take_empty();
  }
  return release(empty) == CUDA_SUCCESS && !empty.empty();
}

std::optional<DeviceMemory::Allocation> DeviceMemory::find(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  return arena_.find(address);
}

std::vector<AddressRange> DeviceMemory::chunks() const {
  const std::lock_guard lock(mutex_);
  std::vector<AddressRange> all = arena_.chunks();
  for (const auto& [address, alone] : alone_) all.push_back({address, alone.chunk_bytes});
  return all;
}

std::uint64_t DeviceMemory::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return arena_.empty_bytes();
}

void DeviceMemory::free_all_of(CUcontext context) {
  std::vector<std::uint64_t> ended;
  {
    const std::lock_guard lock(mutex_);
    ended = arena_.allocations_of(context);
  }
  for (const std::uint64_t address : ended) (void)free(address);
}

}  // namespace mpsshim::interposer::forward
