// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/memory/module_area.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <map>
#include <mutex>

namespace mpsshim::cpudriver {
namespace {

// Where no kernel puts a mapping unasked, and where the sanitizers allow one.
constexpr std::uintptr_t kBegin = 0x7e90'0000'0000;
constexpr std::uintptr_t kEnd = kBegin + (std::uintptr_t{1} << 36);
constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

struct Area {
  std::mutex mutex;
  std::map<std::uintptr_t, std::size_t> taken;  // begin -> size
};

Area& area() {
  static Area& one = *new Area;
  return one;
}

// Under the area's lock. 0: it is full.
std::uintptr_t lowest_room(const Area& within, std::size_t size) {
  std::uintptr_t place = kBegin;
  for (const auto& [begin, taken] : within.taken) {
    if (size <= begin - place) return place;
    place = begin + taken;
  }
  return size <= kEnd - place ? place : 0;
}

}  // namespace

void* take_module_pages(std::size_t size) {
  const std::lock_guard lock(area().mutex);
  if (const std::uintptr_t place = lowest_room(area(), size)) {
    void* const wanted = reinterpret_cast<void*>(place);
    void* const got = mmap(wanted, size, PROT_READ | PROT_WRITE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == wanted) {
      area().taken.emplace(place, size);
      return got;
    }
    if (got != MAP_FAILED) munmap(got, size);  // a kernel older than MAP_FIXED_NOREPLACE takes the address for a hint
  }
  void* const anywhere = mmap(nullptr, size, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  return anywhere == MAP_FAILED ? nullptr : anywhere;
}

void give_back_module_pages(void* pages, std::size_t size) {
  const std::lock_guard lock(area().mutex);
  munmap(pages, size);
  area().taken.erase(reinterpret_cast<std::uintptr_t>(pages));
}

}  // namespace mpsshim::cpudriver
