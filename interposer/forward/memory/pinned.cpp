// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/pinned.hpp"

#include <algorithm>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "interposer/forward/hooks.hpp"
#include "interposer/forward/memory/allocation_owner.hpp"
#include "interposer/forward/memory/managed_advice.hpp"
#include "interposer/forward/memory/populate.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/shared_events.hpp"

namespace mpsshim::interposer::forward {

PinnedMemory& PinnedMemory::instance() {
  return PerSession<PinnedMemory>::get([] { return new PinnedMemory(); });
}

CUresult PinnedMemory::choose_address(std::uint64_t mapped_bytes, std::uint64_t& address) {
  const std::lock_guard lock(mutex_);
  if (addresses_.chunk_bytes() == 0) {
    const proto::Lease& lease = session().pinned_lease();
    if (lease.size_bytes == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    addresses_.add_chunk({lease.address, lease.size_bytes});
  }
  // Sizes are whole pages, so every address is the start of a page.
  std::optional<std::uint64_t> found = addresses_.allocate(mapped_bytes);
  if (!found) {
    for (const std::uint64_t rested : resting_) (void)addresses_.free(rested);
    resting_.clear();
    found = addresses_.allocate(mapped_bytes);
  }
  if (!found) return CUDA_ERROR_OUT_OF_MEMORY;
  address = *found;
  return CUDA_SUCCESS;
}

void PinnedMemory::give_back(std::uint64_t address, std::uint64_t mapped_bytes) {
  // Back to what the lease's reservation was: kept free, nothing behind it.
  if (mmap(host_pointer(address), mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    (void)mprotect(host_pointer(address), mapped_bytes, PROT_NONE);
  } else {
    madvise(host_pointer(address), mapped_bytes, MADV_DONTFORK);
  }
  const std::lock_guard lock(mutex_);
  resting_.push_back(address);
}

CUresult PinnedMemory::map(std::uint64_t address, std::uint32_t flags, Allocation& allocation) {
  proto::FileDescriptor file;
  CUresult error = allocation.opens ? session().open_segment(*allocation.opens, allocation.mapped_bytes, address, file, allocation.segment)
                                    : session().create_segment(allocation.purpose, allocation.mapped_bytes, address, file, allocation.segment);
  if (error != CUDA_SUCCESS) return error;
  if (mmap(host_pointer(address), allocation.mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  madvise(host_pointer(address), allocation.mapped_bytes, MADV_DONTFORK);
  // Registering pins every page; those not yet there would be charged to the executor. Older kernels populate at the first touch.
  madvise(host_pointer(address), allocation.mapped_bytes, MADV_POPULATE_WRITE);
  proto::SegmentMapRecord record{};
  record.segment = allocation.segment;
  record.flags = flags;
  proto::SegmentMapReply reply{};
  error = session().channel().call({}, record, {}, reply);
  // One address for host and device: what unified addressing promises, and what a copy between the two is recognised by.
  if (error == CUDA_SUCCESS && reply.device_address != address) error = CUDA_ERROR_NOT_SUPPORTED;
  struct stat made {};
  if (error == CUDA_SUCCESS && allocation.is_alias && fstat(file.get(), &made) == 0) {
    allocation.identity = {made.st_dev, made.st_ino};
    allocation.file = std::make_shared<proto::FileDescriptor>(std::move(file));
  }
  return error;
}

CUresult PinnedMemory::allocate(std::uint64_t bytes, std::uint32_t flags, CUcontext context, void*& pointer) {
  Allocation allocation;
  allocation.size_bytes = bytes;
  allocation.flags = flags;
  allocation.context = context;
  return allocate(allocation, pointer);
}

CUresult PinnedMemory::allocate_managed(std::uint64_t bytes, CUcontext context, void*& pointer) {
  Allocation allocation;
  allocation.size_bytes = bytes;
  allocation.context = context;
  allocation.is_managed = true;
  return allocate(allocation, pointer);
}

CUresult PinnedMemory::allocate_variables(std::uint64_t bytes, std::vector<AddressRange> variables, void*& pointer) {
  Allocation allocation;
  allocation.size_bytes = bytes;
  allocation.is_managed = true;
  allocation.variables = std::move(variables);
  return allocate(allocation, pointer);
}

CUresult PinnedMemory::allocate_events(const proto::MemoryName* opens, void*& pointer, std::uint64_t& segment) {
  Allocation allocation;
  allocation.size_bytes = proto::kSharedEventBytes;
  allocation.purpose = proto::SegmentPurpose::events;
  allocation.is_alias = true;  // the program knows nothing of it
  if (opens != nullptr) allocation.opens = *opens;
  if (const CUresult error = allocate(allocation, pointer); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(mutex_);
  segment = allocations_.at(reinterpret_cast<std::uintptr_t>(pointer)).segment;
  return CUDA_SUCCESS;
}

CUresult PinnedMemory::allocate_alias(std::uint64_t bytes, std::uint32_t flags, CUcontext context, void*& pointer) {
  Allocation allocation;
  allocation.size_bytes = bytes;
  allocation.flags = flags;
  allocation.context = context;
  allocation.is_alias = true;
  return allocate(allocation, pointer);
}

std::uint64_t PinnedMemory::segment_of(std::uint64_t alias) const {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(alias);
  return found != allocations_.end() ? found->second.segment : 0;
}

std::optional<FileIdentity> PinnedMemory::file_of(std::uint64_t alias) const {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(alias);
  if (found == allocations_.end() || found->second.identity.inode == 0) return std::nullopt;
  return found->second.identity;
}

bool PinnedMemory::map_private(std::uint64_t alias, std::uint64_t offset_bytes, std::uint64_t bytes, void* to) {
  const std::lock_guard lock(mutex_);
  const int fd = descriptor_of(alias);
  return fd >= 0 && mmap(to, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, static_cast<off_t>(offset_bytes)) != MAP_FAILED;
}

void PinnedMemory::blank(std::uint64_t alias, std::uint64_t offset_bytes, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const int fd = descriptor_of(alias);
  if (fd >= 0) (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset_bytes), static_cast<off_t>(bytes));
}

bool PinnedMemory::map_shared(std::uint64_t alias, void* to) {
  const std::lock_guard lock(mutex_);
  const int fd = descriptor_of(alias);
  if (fd < 0) return false;
  Allocation& allocation = allocations_.at(alias);
  if (mmap(to, allocation.mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) return false;
  allocation.file.reset();  // a descriptor each would soon be all that a process may have
  return true;
}

int PinnedMemory::descriptor_of(std::uint64_t alias) {
  const auto found = allocations_.find(alias);
  if (found == allocations_.end() || !found->second.file) return -1;
  const int fd = found->second.file->get();
  struct stat now {};
  if (fstat(fd, &now) == 0 && FileIdentity{now.st_dev, now.st_ino} == found->second.identity) return fd;
  (void)found->second.file->release();  // the number is somebody else's
  return -1;
}

CUresult PinnedMemory::allocate(Allocation allocation, void*& pointer) {
  if (allocation.size_bytes > UINT64_MAX - proto::kPageBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  allocation.mapped_bytes = (allocation.size_bytes + proto::kPageBytes - 1) / proto::kPageBytes * proto::kPageBytes;
  allocation.buffer_id = next_buffer_id();
  std::uint64_t address = 0;
  if (const CUresult error = choose_address(allocation.mapped_bytes, address); error != CUDA_SUCCESS) return error;
  if (const CUresult error = map(address, allocation.flags, allocation); error != CUDA_SUCCESS) {
    give_back(address, allocation.mapped_bytes);
    return error;
  }
  const bool is_programs = allocation.is_programs();
  has_been_used_.store(true, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    allocations_.emplace(address, std::move(allocation));
  }
  pointer = host_pointer(address);
  if (!is_programs || !has_several_sessions()) return CUDA_SUCCESS;
  const CUresult error = open_elsewhere(address);
  if (error != CUDA_SUCCESS) (void)release(pointer);
  return error;
}

CUresult PinnedMemory::free(void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  {
    const std::lock_guard lock(mutex_);
    if (!allocations_.contains(address)) return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult error = synchronize_all_streams(); error != CUDA_SUCCESS) return error;
  if (has_several_sessions()) finish_elsewhere(address);
  return release(pointer);
}

CUresult PinnedMemory::release(void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  Allocation allocation;
  {
    const std::lock_guard opened(opening());
    {
      const std::lock_guard lock(mutex_);
      const auto found = allocations_.find(address);
      if (found == allocations_.end()) return CUDA_ERROR_INVALID_VALUE;
      allocation = found->second;
      allocations_.erase(found);
    }
    close_elsewhere(allocation);
  }
  proto::SegmentUnmapRecord record{};
  record.segment = allocation.segment;
  const CUresult error = session().channel().post({}, record);
  give_back(address, allocation.mapped_bytes);
  if (allocation.is_managed) ManagedAdvice::instance().forget({address, allocation.mapped_bytes});
  return error;
}

std::optional<PinnedMemory::Found> PinnedMemory::find(std::uint64_t address) const {
  if (!has_been_used_.load(std::memory_order_relaxed)) return std::nullopt;  // who asks for an address has it from a thread that has set this
  const std::lock_guard lock(mutex_);
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return std::nullopt;
  --after;
  const Allocation& allocation = after->second;
  Found found{{after->first, allocation.size_bytes},
              allocation.flags,
              allocation.context,
              allocation.is_managed,
              false,
              allocation.is_alias,
              allocation.buffer_id};
  if (!allocation.variables.empty()) {
    const std::uint64_t offset = address - after->first;
    auto variable = std::ranges::upper_bound(allocation.variables, offset, {}, &AddressRange::address);
    if (variable == allocation.variables.begin()) return std::nullopt;
    --variable;
    found.range = {after->first + variable->address, variable->size_bytes};
    found.is_variable = true;
    found.buffer_id = found.range.address;  // as of other variables
  }
  return found.range.holds(address, 1) ? std::optional(found) : std::nullopt;
}

void PinnedMemory::free_all_of(CUcontext context) {
  std::vector<std::uint64_t> ended;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [address, allocation] : allocations_) {
      if (allocation.context == context && !allocation.is_alias) ended.push_back(address);
    }
  }
  for (const std::uint64_t address : ended) (void)free(host_pointer(address));
}

}  // namespace mpsshim::interposer::forward
