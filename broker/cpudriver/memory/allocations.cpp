// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/memory/allocations.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "broker/cpudriver/memory/address_area.hpp"
#include "broker/cpudriver/memory/physical_memory.hpp"
#include "broker/cpudriver/streams/scheduler.hpp"

namespace mpsshim::cpudriver {
namespace {

constexpr std::size_t kDeviceGranule = 512;  // what the driver rounds small allocations to

std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

void* pages(std::size_t size) {
  void* got = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return got == MAP_FAILED ? nullptr : got;
}

void* device_pages(MemoryKind kind, std::size_t size) {
  return kind == MemoryKind::module_global ? AddressArea::of_module_variables().take(round_up(size, page_size())) : pages(size);
}

void release_device_pages(MemoryKind kind, void* pointer, std::size_t size) {
  if (kind == MemoryKind::module_global) return AddressArea::of_module_variables().give_back(pointer, round_up(size, page_size()));
  munmap(pointer, size);
}

bool is_mapped(std::uint64_t begin, std::size_t size) {
  const std::uint64_t first = begin / page_size() * page_size();
  // mincore() with a short vector would need many calls; msync(MS_ASYNC) asks the same question and does nothing else.
  return msync(reinterpret_cast<void*>(first), begin + size - first, MS_ASYNC) == 0 || errno != ENOMEM;
}

}  // namespace

CUresult allocate_device(std::size_t size, MemoryKind kind, std::uint64_t& address) {
  const std::size_t rounded = round_up(size, kDeviceGranule);
  if (size == 0 || rounded < size) return size == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
  if (!MemoryBudget::get().take(rounded)) return CUDA_ERROR_OUT_OF_MEMORY;
  void* pointer = device_pages(kind, rounded);
  MemoryRange range;
  range.begin = reinterpret_cast<std::uint64_t>(pointer);
  range.size = rounded;
  range.kind = kind;
  if (pointer == nullptr || !MemoryMap::get().insert(range)) {
    if (pointer != nullptr) release_device_pages(kind, pointer, rounded);
    MemoryBudget::get().give_back(rounded);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  address = range.begin;
  return CUDA_SUCCESS;
}

CUresult free_device(std::uint64_t address, MemoryKind kind) {
  const auto range = MemoryMap::get().remove(address, kind);
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  MemoryBudget::get().give_back(range->size);
  Scheduler::get().when_quiet([kind, range = *range] { release_device_pages(kind, reinterpret_cast<void*>(range.begin), range.size); });
  return CUDA_SUCCESS;
}

CUresult allocate_pinned(std::size_t size, unsigned flags, void*& pointer) {
  if (size == 0 || size > (std::size_t{1} << 46)) return size == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
  MemoryRange range;
  range.size = round_up(size, page_size());
  void* got = pages(range.size);
  if (got == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  range.begin = reinterpret_cast<std::uint64_t>(got);
  range.kind = MemoryKind::pinned_host;
  range.flags = flags;
  if (!MemoryMap::get().insert(range)) {
    munmap(got, range.size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  pointer = got;
  return CUDA_SUCCESS;
}

CUresult free_pinned(void* pointer) {
  const auto range = MemoryMap::get().remove(reinterpret_cast<std::uint64_t>(pointer), MemoryKind::pinned_host);
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  Scheduler::get().when_quiet([pointer, size = range->size] { munmap(pointer, size); });
  return CUDA_SUCCESS;
}

CUresult register_host(void* pointer, std::size_t size, unsigned flags) {
  MemoryRange range;
  range.begin = reinterpret_cast<std::uint64_t>(pointer);
  range.size = size;
  range.kind = MemoryKind::registered_host;
  range.flags = flags;
  range.is_writable = (flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0;
  if (pointer == nullptr || size == 0 || range.end() < range.begin) return CUDA_ERROR_INVALID_VALUE;
  if (!is_mapped(range.begin, size)) return CUDA_ERROR_INVALID_VALUE;
  return MemoryMap::get().insert(range) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult unregister_host(void* pointer) {
  const auto begin = reinterpret_cast<std::uint64_t>(pointer);
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return MemoryMap::get().remove(begin, MemoryKind::registered_host) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

}  // namespace mpsshim::cpudriver
