// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/registered.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include <dirent.h>
#include <pthread.h>
#include <sys/mman.h>

#include "interposer/forward/hooks.hpp"
#include "interposer/forward/memory/allocation_owner.hpp"
#include "interposer/forward/memory/copy_crew.hpp"
#include "interposer/forward/memory/device_leases.hpp"
#include "interposer/forward/memory/external_memory.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"
#include "proto/channel.hpp"

namespace mpsshim::interposer::forward {

namespace {

// All of it is private memory of this process, which it may read and write.
bool is_private(AddressRange range) {
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return false;
  char line[512];
  std::uint64_t covered = range.address;
  while (covered < range.end() && std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long long begin = 0, end = 0;
    char access[8] = "";
    if (std::sscanf(line, "%llx-%llx %4s", &begin, &end, access) != 3 || end <= covered) continue;
    if (begin > covered || std::strncmp(access, "rw", 2) != 0 || access[3] != 'p' || std::strstr(line, "[stack]") != nullptr) break;
    covered = end;
  }
  std::fclose(maps);
  return covered >= range.end();
}

// Nobody but the caller runs in this process; helpers that copy for callers do nothing by themselves.
bool is_alone() {
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return false;
  unsigned threads = 0;
  while (const dirent* entry = readdir(tasks)) threads += entry->d_name[0] != '.' ? 1 : 0;
  closedir(tasks);
  return threads <= 1 + CopyCrew::instance().living_helpers();
}

bool is_mapped(AddressRange range) {
  const std::uint64_t first = range.address / proto::kPageBytes * proto::kPageBytes;
  unsigned char resident[256];
  for (std::uint64_t page = first; page < range.end();) {
    const std::uint64_t bytes = std::min<std::uint64_t>(range.end() - page, sizeof resident * proto::kPageBytes);
    if (mincore(host_pointer(page), bytes, resident) != 0) return false;
    page += (bytes + proto::kPageBytes - 1) / proto::kPageBytes * proto::kPageBytes;
  }
  return true;
}

bool touch(AddressRange one, AddressRange other) { return one.address < other.end() && other.address < one.end(); }

}  // namespace

RegisteredMemory& RegisteredMemory::instance() {
  return PerSession<RegisteredMemory>::get([] { return new RegisteredMemory(); });
}

CUresult RegisteredMemory::add(AddressRange range, std::uint32_t flags, CUcontext context) {
  const std::lock_guard ordering(order_mutex_);
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [address, other] : registrations_) {
      if (touch(range, {address, other.size_bytes})) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
  }
  if (PinnedMemory::instance().find(range.address)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const bool is_device = DeviceLeases::instance().holds(range.address) || ExternalMemories::instance().find(range.address);
  if (is_device || !is_mapped(range)) return CUDA_ERROR_INVALID_VALUE;
  Registration registration{range.size_bytes, 0, flags, context, next_buffer_id(), nullptr};
  const bool has_whole_pages = range.address % proto::kPageBytes == 0 && range.size_bytes % proto::kPageBytes == 0;
  if (has_whole_pages && is_alone() && is_private(range)) registration.alias = exchange(range, flags, context);
  const std::lock_guard lock(mutex_);
  registrations_.emplace(range.address, registration);
  has_been_used_.store(true, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

// The alias, or 0: the pages are as they were.
std::uint64_t RegisteredMemory::exchange(AddressRange range, std::uint32_t flags, CUcontext context) {
  if (!watch_forks()) return 0;
  void* alias = nullptr;
  if (PinnedMemory::instance().allocate_alias(range.size_bytes, flags, context, alias) != CUDA_SUCCESS) return 0;
  // Alone: nobody stores here between the copy and the exchange.
  std::memcpy(alias, host_pointer(range.address), range.size_bytes);
  // An old size of 0: a second mapping of the same pages.
  if (mremap(alias, 0, range.size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, host_pointer(range.address)) == MAP_FAILED) {
    (void)PinnedMemory::instance().free(alias);
    return 0;
  }
  madvise(host_pointer(range.address), range.size_bytes, MADV_DOFORK);  // unlike the alias
  return reinterpret_cast<std::uintptr_t>(alias);
}

CUresult RegisteredMemory::remove(std::uint64_t address) {
  const std::lock_guard ordering(order_mutex_);
  std::uint64_t alias = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = registrations_.find(address);
    if (found == registrations_.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    alias = found->second.alias;
  }
  if (const CUresult error = synchronize_all_streams(); error != CUDA_SUCCESS) return error;
  if (alias != 0 && has_several_sessions()) PinnedMemory::instance().finish_elsewhere(alias);
  Registration registration;
  {
    const std::lock_guard lock(mutex_);
    registration = registrations_.extract(address).mapped();
  }
  if (registration.alias == 0) return CUDA_SUCCESS;
  make_private(address, registration);
  return PinnedMemory::instance().free(host_pointer(registration.alias));
}

// A private view of the same file: what was stored so far is in it, what is stored from now on is this process's alone. Nobody else writes to
// the file any more, so nothing changes under it.
void RegisteredMemory::make_private(std::uint64_t address, const Registration& registration) {
  const std::uint64_t bytes = registration.size_bytes;
  if (PinnedMemory::instance().map_private(registration.alias, host_pointer(address))) return;
  // The program has closed our descriptor: a copy, and what other threads store meanwhile is lost only where they exist.
  void* copy = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return;  // the pages stay shared with nobody
  std::memcpy(copy, host_pointer(address), bytes);
  (void)mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, host_pointer(address));
}

std::optional<RegisteredMemory::Found> RegisteredMemory::find(std::uint64_t address) const {
  if (!has_been_used_.load(std::memory_order_relaxed)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  auto entry = registrations_.upper_bound(address);
  if (entry == registrations_.begin()) return std::nullopt;
  --entry;
  const Registration& registration = entry->second;
  const AddressRange range{entry->first, registration.size_bytes};
  if (!range.holds(address, 1)) return std::nullopt;
  return Found{range, registration.alias, registration.flags, registration.context, registration.buffer_id};
}

std::optional<RegisteredMemory::Found> RegisteredMemory::find_alias(std::uint64_t address) const {
  if (!has_been_used_.load(std::memory_order_relaxed)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, registration] : registrations_) {
    if (registration.alias == 0 || !AddressRange{registration.alias, registration.size_bytes}.holds(address, 1)) continue;
    return Found{{begin, registration.size_bytes}, registration.alias, registration.flags, registration.context, registration.buffer_id};
  }
  return std::nullopt;
}

void RegisteredMemory::remove_all_of(CUcontext context) {
  std::vector<std::uint64_t> ended;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [address, registration] : registrations_) {
      if (registration.context == context) ended.push_back(address);
    }
  }
  for (const std::uint64_t address : ended) (void)remove(address);
}

bool RegisteredMemory::watch_forks() {
  // Of the forking thread: a session that begins meanwhile has not been locked.
  static thread_local std::uint32_t locked = 0;
  static constexpr auto each = [](void (*act)(RegisteredMemory&)) {
    for (std::uint32_t index = 0; index < locked; ++index) {
      const ActingSession acting(index);
      act(instance());
    }
  };
  static const bool watches = pthread_atfork(
                                  [] {
                                    locked = session_count();
                                    each([](RegisteredMemory& memory) ACQUIRE(memory.mutex_) { memory.before_fork(); });
                                  },
                                  [] { each([](RegisteredMemory& memory) RELEASE(memory.mutex_) { memory.after_fork_in_parent(); }); },
                                  [] { each([](RegisteredMemory& memory) RELEASE(memory.mutex_) { memory.after_fork_in_child(); }); }) == 0;
  return watches;
}

// The child's memory is as it was at the fork, and its own: exchanged pages, which it would share, are replaced by a copy made before.
void RegisteredMemory::before_fork() {
  mutex_.lock();
  for (auto& [address, registration] : registrations_) {
    if (registration.alias == 0) continue;
    void* copy = mmap(nullptr, registration.size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
      madvise(host_pointer(address), registration.size_bytes, MADV_DONTFORK);  // no copy: the child has nothing there rather than what is not its own
      continue;
    }
    std::memcpy(copy, host_pointer(registration.alias), registration.size_bytes);
    registration.snapshot = copy;
  }
}

void RegisteredMemory::after_fork_in_parent() {
  for (auto& [address, registration] : registrations_) {
    if (registration.alias == 0) continue;
    madvise(host_pointer(address), registration.size_bytes, MADV_DOFORK);
    if (registration.snapshot != nullptr) munmap(registration.snapshot, registration.size_bytes);
    registration.snapshot = nullptr;
  }
  mutex_.unlock();
}

void RegisteredMemory::after_fork_in_child() {
  for (auto& [address, registration] : registrations_) {
    const std::uint64_t bytes = registration.size_bytes;
    if (registration.snapshot != nullptr) (void)mremap(registration.snapshot, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, host_pointer(address));
    registration.snapshot = nullptr;
    registration.alias = 0;  // a fork of the child finds private memory
  }
  mutex_.unlock();
}

}  // namespace mpsshim::interposer::forward
