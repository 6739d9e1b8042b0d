// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/page_parking.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interposer/cancellation.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/library_thread.hpp"
#include "proto/futex.hpp"

// Of newer kernels than the headers may be.
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

namespace mpsshim::interposer::forward {

namespace {
constexpr std::uint64_t kIdleSleepUs = 60'000'000;
}

bool PageParking::park(AddressRange pages) {
  if (pages.size_bytes < kLeastBytes || bytes_.load(std::memory_order_relaxed) + pages.size_bytes > kMostBytes) return false;
  if (!has_thread_) has_thread_ = start_library_thread(thread_main, this);
  if (!has_thread_) return false;
  // Room for them where they lie in the same place within a table.
  const std::size_t room_bytes = pages.size_bytes + kLeastBytes;
  void* const room = mmap(nullptr, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return false;
  const auto base = reinterpret_cast<std::uintptr_t>(room);
  void* const to = host_pointer(base + (pages.address - base) % kLeastBytes);
  constexpr int kFlags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  if (mremap(host_pointer(pages.address), pages.size_bytes, pages.size_bytes, kFlags, to) == MAP_FAILED) {
    munmap(room, room_bytes);  // an older kernel, or a limit
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    parked_.push_back({base, room_bytes});
  }
  parked_count_.fetch_add(1, std::memory_order_release);
  if (bytes_.fetch_add(room_bytes, std::memory_order_acq_rel) == 0) proto::futex_wake_one(parked_count_);
  return true;
}

void* PageParking::thread_main(void* parking) {
  pthread_setname_np(pthread_self(), "mpsshim-pages");
  static_cast<PageParking*>(parking)->clear();
}

// Clearing holds up whoever changes the address space, so it is done piece by piece, and while nothing is being parked.
void PageParking::clear() {
  const NoCancellation hold;
  for (;;) {
    const std::uint32_t seen = parked_count_.load(std::memory_order_acquire);
    if (bytes_.load(std::memory_order_acquire) == 0) {
      proto::futex_wait(parked_count_, seen, kIdleSleepUs);
      continue;
    }
    usleep(kRestUs);
    while (parked_count_.load(std::memory_order_acquire) == seen && clear_one()) {
    }
  }
}

bool PageParking::clear_one() {
  AddressRange piece{};
  {
    const std::lock_guard lock(mutex_);
    if (parked_.empty()) return false;
    piece = parked_.back();
    parked_.pop_back();
  }
  munmap(host_pointer(piece.address), piece.size_bytes);
  bytes_.fetch_sub(piece.size_bytes, std::memory_order_acq_rel);
  return true;
}

}  // namespace mpsshim::interposer::forward
