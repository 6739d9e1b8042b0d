// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/memory/external_memory.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/cpudriver/memory/address_area.hpp"
#include "broker/cpudriver/memory/memory_map.hpp"
#include "broker/cpudriver/memory/physical_memory.hpp"
#include "broker/cpudriver/streams/scheduler.hpp"

namespace mpsshim::cpudriver {
namespace {

constexpr std::uint64_t kPage = 4096;

std::size_t in_pages(std::uint64_t size_bytes) { return (size_bytes + kPage - 1) / kPage * kPage; }

bool seal_size(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && ((seals & F_SEAL_SHRINK) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
}

}  // namespace

ExternalMemory::~ExternalMemory() { close(fd_); }

CUresult ExternalMemory::import(int fd, std::uint64_t size_bytes, std::shared_ptr<ExternalMemory>& memory) {
  struct stat status {};
  if (size_bytes == 0 || !seal_size(fd) || fstat(fd, &status) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (static_cast<std::uint64_t>(status.st_size) < size_bytes) return CUDA_ERROR_INVALID_VALUE;
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  memory = std::make_shared<ExternalMemory>(own, size_bytes);
  close(fd);
  return CUDA_SUCCESS;
}

CUresult ExternalMemory::map(std::uint64_t offset, std::uint64_t size_bytes, std::uint64_t& address) const {
  if (size_bytes == 0 || offset % kPage != 0 || offset > size_bytes_ || size_bytes > size_bytes_ - offset) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t bytes = in_pages(size_bytes);
  if (!MemoryBudget::get().take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  AddressArea& area = AddressArea::of_external_memory();
  void* const pages = area.take(bytes, fd_, offset);
  MemoryRange range;
  range.begin = reinterpret_cast<std::uint64_t>(pages);
  range.size = size_bytes;
  range.kind = MemoryKind::external;
  if (pages == nullptr || !MemoryMap::get().insert(range)) {
    if (pages != nullptr) area.give_back(pages, bytes);
    MemoryBudget::get().give_back(bytes);
    return pages == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;  // the file may not be written
  }
  address = range.begin;
  return CUDA_SUCCESS;
}

CUresult ExternalMemory::unmap(std::uint64_t address) {
  const auto range = MemoryMap::get().remove(address, MemoryKind::external);
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t bytes = in_pages(range->size);
  MemoryBudget::get().give_back(bytes);
  Scheduler::get().when_quiet([address, bytes] { AddressArea::of_external_memory().give_back(reinterpret_cast<void*>(address), bytes); });
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::cpudriver
