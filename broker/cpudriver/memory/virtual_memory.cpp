// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/memory/virtual_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "broker/cpudriver/memory/memory_map.hpp"
#include "broker/cpudriver/streams/scheduler.hpp"

namespace mpsshim::cpudriver {
namespace {

constexpr std::size_t kGranularity = PhysicalMemory::kGranularity;
constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }

bool is_granular(std::uint64_t value) { return value % kGranularity == 0; }

// Exactly there, or nothing.
bool reserve_at(std::uint64_t begin, std::size_t size) {
  void* got = mmap(pointer(begin), size, PROT_NONE, kReserved | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == MAP_FAILED) return false;
  if (got == pointer(begin)) return true;
  munmap(got, size);  // a kernel older than MAP_FIXED_NOREPLACE takes the address for a hint
  return false;
}

bool reserve_anywhere(std::size_t size, std::size_t alignment, std::uint64_t& begin) {
  const std::size_t with_slack = size + alignment;
  if (with_slack < size) return false;
  void* got = mmap(nullptr, with_slack, PROT_NONE, kReserved, -1, 0);
  if (got == MAP_FAILED) return false;
  const auto start = reinterpret_cast<std::uint64_t>(got);
  begin = (start + alignment - 1) / alignment * alignment;
  if (begin > start) munmap(pointer(start), begin - start);
  const std::uint64_t slack_end = start + with_slack;
  if (slack_end > begin + size) munmap(pointer(begin + size), slack_end - (begin + size));
  return true;
}

}  // namespace

VirtualMemory& VirtualMemory::get() {
  static VirtualMemory& memory = *new VirtualMemory;
  return memory;
}

CUresult VirtualMemory::reserve(std::size_t size, std::size_t alignment, std::uint64_t hint, std::uint64_t& begin) {
  if (alignment == 0) alignment = kGranularity;
  const bool is_power_of_two = (alignment & (alignment - 1)) == 0;
  if (size == 0 || !is_granular(size) || !is_granular(alignment) || !is_power_of_two) return CUDA_ERROR_INVALID_VALUE;
  if (hint % alignment != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  if (hint != 0 && reserve_at(hint, size)) {
    begin = hint;
  } else if (!reserve_anywhere(size, alignment, begin)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  reservations_[begin] = size;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::free(std::uint64_t begin, std::size_t size) {
  const std::lock_guard lock(mutex_);
  const auto found = reservations_.find(begin);
  if (found == reservations_.end() || found->second != size) return CUDA_ERROR_INVALID_VALUE;
  const auto mapping = mappings_.lower_bound(begin);
  if (mapping != mappings_.end() && mapping->first < begin + size) return CUDA_ERROR_INVALID_VALUE;
  reservations_.erase(found);
  Scheduler::get().when_quiet([begin, size] { munmap(pointer(begin), size); });
  return CUDA_SUCCESS;
}

bool VirtualMemory::is_reserved(std::uint64_t begin, std::size_t size) const {
  auto next = reservations_.upper_bound(begin);
  if (next == reservations_.begin()) return false;
  const auto& [start, reserved_size] = *std::prev(next);
  const std::uint64_t offset = begin - start;
  return offset < reserved_size && size <= reserved_size - offset;
}

CUresult VirtualMemory::map(std::uint64_t begin, std::size_t size, std::size_t offset,
                            std::shared_ptr<PhysicalMemory> memory) {
  if (size == 0 || !is_granular(begin) || !is_granular(size) || !is_granular(offset)) return CUDA_ERROR_INVALID_VALUE;
  if (offset > memory->size_bytes() || size > memory->size_bytes() - offset) return CUDA_ERROR_INVALID_VALUE;
  if (size != memory->size_bytes()) return CUDA_ERROR_NOT_SUPPORTED;  // measured: memory is mapped as a whole
  const std::lock_guard lock(mutex_);
  if (!is_reserved(begin, size)) return CUDA_ERROR_INVALID_VALUE;
  const auto next = mappings_.lower_bound(begin);
  if (next != mappings_.end() && next->first < begin + size) return CUDA_ERROR_INVALID_VALUE;
  if (next != mappings_.begin() && std::prev(next)->first + std::prev(next)->second.size > begin) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  void* got = mmap(pointer(begin), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, memory->fd(),
                   static_cast<off_t>(offset));
  if (got == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  mappings_[begin] = Mapping{size, std::move(memory), CU_MEM_ACCESS_FLAGS_PROT_NONE};
  return CUDA_SUCCESS;
}

// The range consists of one or more mappings without a hole, none of them cut.
bool VirtualMemory::covers_whole_mappings(std::uint64_t begin, std::size_t size) const {
  if (size == 0) return false;
  const std::uint64_t end = begin + size;
  while (begin < end) {
    const auto found = mappings_.find(begin);
    if (found == mappings_.end()) return false;
    begin += found->second.size;
  }
  return begin == end;
}

CUresult VirtualMemory::set_access(std::uint64_t begin, std::size_t size, CUmemAccess_flags access) {
  const std::lock_guard lock(mutex_);
  if (!covers_whole_mappings(begin, size)) return CUDA_ERROR_INVALID_VALUE;
  MemoryMap& map = MemoryMap::get();
  const auto last = mappings_.lower_bound(begin + size);
  for (auto mapping = mappings_.find(begin); mapping != last; ++mapping) {
    if (mapping->second.access == access) continue;
    map.remove(mapping->first, MemoryKind::mapped);
    mapping->second.access = access;
    if (access == CU_MEM_ACCESS_FLAGS_PROT_NONE) continue;
    MemoryRange range;
    range.begin = mapping->first;
    range.size = mapping->second.size;
    range.kind = MemoryKind::mapped;
    range.is_writable = access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (!map.insert(range)) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::unmap(std::uint64_t begin, std::size_t size) {
  std::vector<std::shared_ptr<PhysicalMemory>> released;  // closed after the mutex
  const std::lock_guard lock(mutex_);
  if (!covers_whole_mappings(begin, size)) return CUDA_ERROR_INVALID_VALUE;
  const auto first = mappings_.find(begin);
  const auto last = mappings_.lower_bound(begin + size);
  for (auto mapping = first; mapping != last; ++mapping) {
    MemoryMap::get().remove(mapping->first, MemoryKind::mapped);
    released.push_back(std::move(mapping->second.memory));
  }
  mappings_.erase(first, last);
  forget_pages(begin, size);
  return CUDA_SUCCESS;
}

// A kernel that looked the address up before it left MemoryMap may be about to touch it; on a GPU that is an illegal
// address, here it would be SIGSEGV. While anything runs, the range therefore gets pages that nobody will miss.
void VirtualMemory::forget_pages(std::uint64_t begin, std::size_t size) {
  const int protection = Scheduler::get().is_quiet() ? PROT_NONE : PROT_READ | PROT_WRITE;
  mmap(pointer(begin), size, protection, kReserved | MAP_FIXED, -1, 0);
}

std::shared_ptr<PhysicalMemory> VirtualMemory::mapped_at(std::uint64_t address, CUmemAccess_flags* access) {
  const std::lock_guard lock(mutex_);
  auto next = mappings_.upper_bound(address);
  if (next == mappings_.begin()) return nullptr;
  const auto& [begin, mapping] = *std::prev(next);
  if (address - begin >= mapping.size) return nullptr;
  if (access != nullptr) *access = mapping.access;
  return mapping.memory;
}

}  // namespace mpsshim::cpudriver
