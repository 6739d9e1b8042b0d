// SPDX-License-Identifier: Apache-2.0
//
// Addresses for one purpose: each set of pages lies at the lowest place that has room. Processes that load and unload the same modules in the same
// order so have their variables at the same addresses, whatever else they have mapped, as with NVIDIA's driver; and what is mapped of external
// memory lies where other processes have nothing. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "proto/mutex.hpp"

namespace mpsshim::cpudriver {

class AddressArea {
 public:
  static AddressArea& of_module_variables();
  static AddressArea& of_external_memory();

  // Zeroed pages, or those of a file from `offset` on, shared; `size` is a whole number of pages. nullptr: there is no memory, or the file cannot
  // be mapped. Outside the area where that is full, or somebody else's.
  void* take(std::size_t size, int file = -1, std::uint64_t offset = 0);
  void give_back(void* pages, std::size_t size);

 private:
  AddressArea(std::uintptr_t begin, std::uintptr_t end) : begin_(begin), end_(end) {}
  std::uintptr_t lowest_room(std::size_t size) const REQUIRES(mutex_);

  const std::uintptr_t begin_;
  const std::uintptr_t end_;
  Mutex mutex_;
  std::map<std::uintptr_t, std::size_t> taken_ GUARDED_BY(mutex_);  // begin -> size
};

}  // namespace mpsshim::cpudriver
