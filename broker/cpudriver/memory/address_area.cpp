// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/memory/address_area.hpp"

#include <sys/mman.h>

namespace mpsshim::cpudriver {
namespace {

// Where no kernel puts a mapping unasked, and where the sanitizers allow one.
constexpr std::uintptr_t kModulesBegin = 0x7e90'0000'0000;
constexpr std::uintptr_t kModulesEnd = kModulesBegin + (std::uintptr_t{1} << 36);
constexpr std::uintptr_t kExternalBegin = kModulesEnd;
constexpr std::uintptr_t kExternalEnd = kExternalBegin + (std::uintptr_t{1} << 38);

void* map_pages(void* wanted, std::size_t size, int file, std::uint64_t offset) {
  const int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  const int place = wanted != nullptr ? MAP_FIXED_NOREPLACE : 0;
  void* const got = mmap(wanted, size, PROT_READ | PROT_WRITE, kind | place | MAP_NORESERVE, file, static_cast<off_t>(offset));
  if (got == MAP_FAILED) return nullptr;
  if (wanted == nullptr || got == wanted) return got;
  munmap(got, size);  // a kernel older than MAP_FIXED_NOREPLACE takes the address for a hint
  return nullptr;
}

}  // namespace

AddressArea& AddressArea::of_module_variables() {
  static AddressArea& one = *new AddressArea(kModulesBegin, kModulesEnd);
  return one;
}

AddressArea& AddressArea::of_external_memory() {
  static AddressArea& one = *new AddressArea(kExternalBegin, kExternalEnd);
  return one;
}

// 0: it is full.
std::uintptr_t AddressArea::lowest_room(std::size_t size) const {
  std::uintptr_t place = begin_;
  for (const auto& [begin, taken] : taken_) {
    if (size <= begin - place) return place;
    place = begin + taken;
  }
  return size <= end_ - place ? place : 0;
}

void* AddressArea::take(std::size_t size, int file, std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  if (const std::uintptr_t place = lowest_room(size)) {
    if (void* const got = map_pages(reinterpret_cast<void*>(place), size, file, offset)) {
      taken_.emplace(place, size);
      return got;
    }
  }
  return map_pages(nullptr, size, file, offset);
}

void AddressArea::give_back(void* pages, std::size_t size) {
  const std::lock_guard lock(mutex_);
  munmap(pages, size);
  taken_.erase(reinterpret_cast<std::uintptr_t>(pages));
}

}  // namespace mpsshim::cpudriver
