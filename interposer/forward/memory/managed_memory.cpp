// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/managed_memory.hpp"

#include <algorithm>
#include <utility>

#include <sys/mman.h>

#include "interposer/forward/hooks.hpp"
#include "interposer/forward/memory/allocation_owner.hpp"
#include "interposer/forward/memory/device_memory.hpp"
#include "interposer/forward/memory/managed_advice.hpp"
#include "interposer/forward/memory/managed_residence.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/forward/memory/touch_server.hpp"
#include "interposer/forward/peer_access.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/managed_mode.hpp"

namespace mpsshim::interposer::forward {

namespace {

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

// What migrates is one device's, and a program with several may use it from each.
bool does_each_reach_others() {
  const int devices = device_count();
  for (CUdevice device = 0; device < devices; ++device) {
    for (CUdevice other = 0; other < devices; ++other) {
      if (device != other && !can_access(device, other)) return false;
    }
  }
  return true;
}

ManagedMode mode() { return managed_mode() == ManagedMode::automatic && !does_each_reach_others() ? ManagedMode::host : managed_mode(); }

}  // namespace

ManagedMemory& ManagedMemory::instance() {
  return PerSession<ManagedMemory>::get([] { return new ManagedMemory(); });
}

AddressRange ManagedAllocation::range_of(BlockRun blocks) const {
  const std::uint64_t begin = pages.address + blocks.first * block_bytes;
  return {begin, std::min(blocks.count * block_bytes, pages.end() - begin)};
}

BlockRun ManagedAllocation::blocks_of(AddressRange range) const {
  const std::uint64_t first = (range.address - pages.address) / block_bytes;
  return {first, (range.end() - 1 - pages.address) / block_bytes - first + 1};
}

std::span<const std::byte> ManagedAllocation::contents(BlockRun blocks) const {
  const AddressRange range = range_of(blocks);
  return {static_cast<const std::byte*>(host_pointer(shadow + (range.address - pages.address))), range.size_bytes};
}

CUresult ManagedMemory::start() {
  if (watch_ != nullptr) return CUDA_SUCCESS;
  if (has_failed_) return CUDA_ERROR_NOT_SUPPORTED;
  has_failed_ = true;
  if (copies_ == nullptr) {
    if (const CUresult error = Streams::instance().create(CU_STREAM_NON_BLOCKING, 0, nullptr, copies_); error != CUDA_SUCCESS) return error;
  }
  std::unique_ptr<TouchWatch> watch = TouchWatch::make();
  if (watch == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  // A program that nobody has asked for this must not get EFAULT from read() or write().
  if (mode() == ManagedMode::automatic && !watch->notices_system_calls()) return CUDA_ERROR_NOT_SUPPORTED;
  if (!TouchServer::start(*watch)) return CUDA_ERROR_NOT_SUPPORTED;
  watch_ = std::move(watch);
  has_failed_ = false;
  return CUDA_SUCCESS;
}

CUresult ManagedMemory::zero(const Allocation& allocation) {
  const CUresult error = session().channel().post<proto::FillRecord>(copies_->id, 0, [&](proto::FillRecord& record, std::byte*, Place) {
    record = proto::FillRecord{allocation.pages.address, 0, allocation.pages.size_bytes / 4, 1, 0, 4};
    copies_->has_work.store(true, std::memory_order_relaxed);
    copies_->has_visible_work.store(true, std::memory_order_relaxed);
  });
  std::uint32_t target = 0;
  if (error != CUDA_SUCCESS) return error;
  if (const CUresult fenced = Streams::instance().fence(*copies_, target); fenced != CUDA_SUCCESS) return fenced;
  return session().wait_fence(copies_->word, target, "managed memory to be zeroed");
}

CUresult ManagedMemory::map(Allocation& allocation) {
  void* const at = host_pointer(allocation.pages.address);
  if (!PinnedMemory::instance().map_shared(allocation.shadow, at)) return CUDA_ERROR_OUT_OF_MEMORY;
  madvise(at, allocation.pages.size_bytes, MADV_DONTFORK);
  return watch_->add(allocation.pages) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// Back to what the lease's reservation was: kept free, nothing behind it.
void ManagedMemory::unmap(const Allocation& allocation) {
  const AddressRange& pages = allocation.pages;
  watch_->remove(pages);
  if (mmap(host_pointer(pages.address), pages.size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    (void)mprotect(host_pointer(pages.address), pages.size_bytes, PROT_NONE);
  } else {
    madvise(host_pointer(pages.address), pages.size_bytes, MADV_DONTFORK);
  }
}

CUresult ManagedMemory::make(std::uint64_t bytes, std::unique_ptr<Allocation>& made) {
  if (bytes > UINT64_MAX / 4) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t page_bytes = round_up(bytes, proto::kPageBytes);
  const std::uint64_t block_bytes = std::max(kBlockBytes, round_up(page_bytes / kBlocksOfLargest, kBlockBytes));
  made = std::make_unique<Allocation>(round_up(page_bytes, block_bytes) / block_bytes);
  made->size_bytes = bytes;
  made->block_bytes = block_bytes;
  made->buffer_id = next_buffer_id();
  made->device = DeviceMemory::instance().allocate_alone(page_bytes);
  made->is_alone = made->device != 0;
  // No other allocation may have bytes on its pages.
  const std::uint64_t among_others = page_bytes + proto::kPageBytes;
  if (!made->is_alone) {
    if (const CUresult error = DeviceMemory::instance().allocate(among_others, nullptr, made->device); error != CUDA_SUCCESS) return error;
  }
  made->pages = {round_up(made->device, proto::kPageBytes), page_bytes};
  void* shadow = nullptr;
  CUresult error = PinnedMemory::instance().allocate_alias(page_bytes, 0, nullptr, shadow);
  made->shadow = reinterpret_cast<std::uintptr_t>(shadow);
  if (error == CUDA_SUCCESS) {
    error = zero(*made);
    if (error == CUDA_SUCCESS) error = map(*made);
    if (error == CUDA_SUCCESS) return error;
    unmap(*made);
    (void)PinnedMemory::instance().release(shadow);
  }
  (void)DeviceMemory::instance().give_back(made->device);
  return error;
}

CUresult ManagedMemory::allocate(std::uint64_t bytes, CUcontext context, void*& pointer) {
  CUresult error = CUDA_ERROR_NOT_SUPPORTED;
  if (mode() != ManagedMode::host) {
    {
      const std::lock_guard lock(start_mutex_);
      error = start();
    }
    std::unique_ptr<Allocation> made;
    if (error == CUDA_SUCCESS) error = make(bytes, made);
    if (error == CUDA_SUCCESS) {
      made->context = context;
      pointer = host_pointer(made->pages.address);
      return add(std::move(made));
    }
    // Where the device is full, or touches cannot be noticed, it stays on the host.
    const bool can_stay = error == CUDA_ERROR_OUT_OF_MEMORY || error == CUDA_ERROR_NOT_SUPPORTED;
    if (mode() == ManagedMode::device || !can_stay) return error;
  }
  return PinnedMemory::instance().allocate_managed(bytes, context, pointer);
}

CUresult ManagedMemory::allocate_variables(std::uint64_t bytes, std::vector<AddressRange> variables, void*& pointer) {
  if (mode() == ManagedMode::host) return PinnedMemory::instance().allocate_variables(bytes, std::move(variables), pointer);
  std::unique_ptr<Allocation> made;
  CUresult error = CUDA_SUCCESS;
  {
    const std::lock_guard lock(start_mutex_);
    error = start();
  }
  if (error == CUDA_SUCCESS) error = make(bytes, made);
  if (error == CUDA_ERROR_OUT_OF_MEMORY || error == CUDA_ERROR_NOT_SUPPORTED) {
    if (mode() == ManagedMode::device) return error;
    return PinnedMemory::instance().allocate_variables(bytes, std::move(variables), pointer);
  }
  if (error != CUDA_SUCCESS) return error;
  made->variables = std::move(variables);
  pointer = host_pointer(made->pages.address);
  return add(std::move(made));
}

// Known first: a session that begins meanwhile finds it (join()), or is found.
CUresult ManagedMemory::add(std::unique_ptr<Allocation> made) {
  const std::uint64_t address = made->pages.address;
  {
    const std::lock_guard lock(order_);
    allocations_.emplace(address, std::move(made));
    in_use_.fetch_add(1, std::memory_order_relaxed);
  }
  const CUresult error = let_others_reach();
  if (error != CUDA_SUCCESS) (void)release(address);
  return error;
}

CUresult ManagedMemory::free(std::uint64_t address) {
  {
    const std::lock_guard lock(order_);
    if (!allocations_.contains(address)) return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult error = synchronize_all_streams(); error != CUDA_SUCCESS) return error;
  PeerAccess::instance().finish_work();
  return release(address);
}

CUresult ManagedMemory::release(std::uint64_t address) {
  std::unique_ptr<Allocation> ended;
  {
    const std::lock_guard lock(order_);
    const auto found = allocations_.find(address);
    if (found == allocations_.end()) return CUDA_ERROR_INVALID_VALUE;
    ended = std::move(found->second);
    allocations_.erase(found);
    in_use_.fetch_sub(1, std::memory_order_relaxed);
    unmap(*ended);
  }
  if (ended->lives_on_host) ManagedResidence::move_to_device(*ended);
  ManagedAdvice::instance().forget(ended->pages);
  if (ended->second_copy != 0) (void)PinnedMemory::instance().release(host_pointer(ended->second_copy));
  const CUresult error = PinnedMemory::instance().release(host_pointer(ended->shadow));
  const CUresult given = DeviceMemory::instance().give_back(ended->device);
  return error != CUDA_SUCCESS ? error : given;
}

void ManagedMemory::free_all_of(CUcontext context) {
  std::vector<std::uint64_t> ended;
  {
    const std::lock_guard lock(order_);
    for (const auto& [address, allocation] : allocations_) {
      if (allocation->context == context && allocation->variables.empty()) ended.push_back(address);
    }
  }
  for (const std::uint64_t address : ended) (void)free(address);
}

ManagedMemory::Allocation* ManagedMemory::find(std::uint64_t address) const {
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return nullptr;
  --after;
  return after->second->pages.holds(address, 1) ? after->second.get() : nullptr;
}

bool ManagedMemory::look(std::uint64_t address, std::optional<Found>& found) const {
  if (!in_use()) return false;
  const std::lock_guard lock(order_);
  const Allocation* allocation = find(address);
  if (allocation == nullptr) return false;
  Found there{{allocation->pages.address, allocation->size_bytes}, allocation->context, allocation->buffer_id, false};
  if (!allocation->variables.empty()) {
    const std::uint64_t offset = address - allocation->pages.address;
    auto variable = std::ranges::upper_bound(allocation->variables, offset, {}, &AddressRange::address);
    if (variable == allocation->variables.begin()) return true;
    --variable;
    there.range = {allocation->pages.address + variable->address, variable->size_bytes};
    there.is_variable = true;
    there.buffer_id = there.range.address;  // as of other variables
  }
  if (there.range.holds(address, 1)) found = there;
  return true;
}

}  // namespace mpsshim::interposer::forward
