// SPDX-License-Identifier: Apache-2.0
// Takes many pages out of the process's page table in little time: their entries are moved to addresses that nobody knows (MREMAP_DONTUNMAP, Linux
// 5.13), a whole table at a time where it may be, and are cleared there by a thread of the library's own, once nothing has been moved for some
// milliseconds. Clearing them where they are takes three to eight times as long (docs/experiments/2026-11-27-parked-pages.md).
//
// The pages belong to a shared mapping of a file, so they stay in the file. One owner, whose lock is held for park(). It is not to be destroyed,
// since its thread does not end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "interposer/forward/memory/address_range.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

class PageParking {
 public:
  static constexpr std::size_t kLeastBytes = std::size_t{2} << 20;  // a page of the page table covers as much

  PageParking() = default;
  PageParking(const PageParking&) = delete;

  // Whole pages of one mapping. The next touch of them finds none in the table. False: that cannot be said of all.
  [[nodiscard]] bool park(AddressRange pages);

 private:
  static void* thread_main(void* parking);
  [[noreturn]] void clear();
  [[nodiscard]] bool clear_one();

  static constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // beyond, whoever closes clears
  static constexpr std::uint64_t kRestUs = 3'000;

  bool has_thread_ = false;
  std::atomic<std::uint32_t> parked_count_{0};  // ever, which the thread sleeps on
  std::atomic<std::size_t> bytes_{0};
  Mutex mutex_;
  std::vector<AddressRange> parked_ GUARDED_BY(mutex_);
};

}  // namespace mpsshim::interposer::forward
