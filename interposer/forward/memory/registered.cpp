// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/registered.hpp"

#include <algorithm>
#include <csignal>
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
#include "interposer/forward/memory/page_exchange.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/forward/memory/userfault.hpp"
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

AddressRange pages_of(AddressRange range) {
  const std::uint64_t begin = range.address / proto::kPageBytes * proto::kPageBytes;
  return {begin, (range.end() - begin + proto::kPageBytes - 1) / proto::kPageBytes * proto::kPageBytes};
}

// Nobody stores here between the copy and the exchange; nor does a handler of signals.
std::uint64_t exchange_alone(AddressRange pages, std::byte* shared) {
  sigset_t all, before;
  sigfillset(&all);
  if (pthread_sigmask(SIG_BLOCK, &all, &before) != 0) return 0;
  std::memcpy(shared, host_pointer(pages.address), pages.size_bytes);
  // An old size of 0: a second mapping of the same pages.
  const bool is_exchanged = mremap(shared, 0, pages.size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, host_pointer(pages.address)) != MAP_FAILED;
  (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (is_exchanged) madvise(host_pointer(pages.address), pages.size_bytes, MADV_DOFORK);  // unlike the alias
  return is_exchanged ? pages.size_bytes : 0;
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
  Registration registration{range.size_bytes, pages_of(range), 0, flags, context, next_buffer_id(), nullptr};
  registration.alias = exchange(registration, false);
  const std::lock_guard lock(mutex_);
  registrations_.emplace(range.address, registration);
  has_been_used_.store(true, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

std::uint64_t RegisteredMemory::exchange(const Registration& registration, bool is_asked_for) {
  const AddressRange& pages = registration.pages;
  if (!is_private(pages) || is_of_this_thread(pages) || !watch_forks()) return 0;
  void* alias = nullptr;
  if (PinnedMemory::instance().allocate_alias(pages.size_bytes, registration.flags, registration.context, alias) != CUDA_SUCCESS) return 0;
  auto* const shared = static_cast<std::byte*>(alias);
  std::uint64_t done = 0;
  {
    const std::lock_guard lock(exchange_mutex_);
    if (is_alone()) done = exchange_alone(pages, shared);
    if (done == 0) done = exchange_pages(pages, shared, FaultsOf::everybody);
    if (done == 0 && is_asked_for) done = exchange_pages(pages, shared, FaultsOf::process);
    if (done == pages.size_bytes) return reinterpret_cast<std::uintptr_t>(alias);
    if (done != 0) make_private({0, pages, reinterpret_cast<std::uintptr_t>(alias)}, done);
  }
  (void)PinnedMemory::instance().free(alias);
  return 0;
}

std::uint64_t RegisteredMemory::alias_of(std::uint64_t address) {
  const std::lock_guard ordering(order_mutex_);
  Registration registration;
  std::uint64_t begin = 0;
  {
    const std::lock_guard lock(mutex_);
    auto entry = registrations_.upper_bound(address);
    if (entry == registrations_.begin()) return 0;
    --entry;
    if (!AddressRange{entry->first, entry->second.size_bytes}.holds(address, 1)) return 0;
    begin = entry->first;
    registration = entry->second;
  }
  if (registration.alias == 0) {
    registration.alias = exchange(registration, true);
    const std::lock_guard lock(mutex_);
    registrations_.at(begin).alias = registration.alias;
  }
  return registration.alias != 0 ? registration.alias + (address - registration.pages.address) : 0;
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
  make_private(registration, registration.pages.size_bytes);
  return PinnedMemory::instance().free(host_pointer(registration.alias));
}

// A private view of the same file: what was stored so far is in it, what is stored from now on is this process's alone. Nobody else writes to
// the file any more, so nothing changes under it.
void RegisteredMemory::make_private(const Registration& registration, std::uint64_t bytes) {
  void* const pages = host_pointer(registration.pages.address);
  if (PinnedMemory::instance().map_private(registration.alias, pages, bytes)) return;
  // The program has closed our descriptor: a copy, and what other threads store meanwhile is lost only where they exist.
  void* copy = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return;  // the pages stay shared with nobody
  std::memcpy(copy, pages, bytes);
  (void)mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, pages);
}

RegisteredMemory::Found RegisteredMemory::found(std::uint64_t begin, const Registration& registration) {
  const std::uint64_t alias = registration.alias != 0 ? registration.alias + (begin - registration.pages.address) : 0;
  return {{begin, registration.size_bytes}, alias, registration.flags, registration.context, registration.buffer_id};
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
  return found(entry->first, registration);
}

std::optional<RegisteredMemory::Found> RegisteredMemory::find_alias(std::uint64_t address) const {
  if (!has_been_used_.load(std::memory_order_relaxed)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, registration] : registrations_) {
    const Found each = found(begin, registration);
    if (each.alias != 0 && AddressRange{each.alias, registration.size_bytes}.holds(address, 1)) return each;
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
  exchange_mutex_.lock();
  mutex_.lock();
  for (auto& [address, registration] : registrations_) {
    if (registration.alias == 0) continue;
    const AddressRange& pages = registration.pages;
    void* copy = mmap(nullptr, pages.size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
      madvise(host_pointer(pages.address), pages.size_bytes, MADV_DONTFORK);  // no copy: the child has nothing there rather than what is not its own
      continue;
    }
    std::memcpy(copy, host_pointer(registration.alias), pages.size_bytes);
    registration.snapshot = copy;
  }
}

void RegisteredMemory::after_fork_in_parent() {
  for (auto& [address, registration] : registrations_) {
    if (registration.alias == 0) continue;
    const AddressRange& pages = registration.pages;
    madvise(host_pointer(pages.address), pages.size_bytes, MADV_DOFORK);
    if (registration.snapshot != nullptr) munmap(registration.snapshot, pages.size_bytes);
    registration.snapshot = nullptr;
  }
  mutex_.unlock();
  exchange_mutex_.unlock();
}

void RegisteredMemory::after_fork_in_child() {
  for (auto& [address, registration] : registrations_) {
    const AddressRange& pages = registration.pages;
    if (registration.snapshot != nullptr) {
      (void)mremap(registration.snapshot, pages.size_bytes, pages.size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, host_pointer(pages.address));
    }
    registration.snapshot = nullptr;
    registration.alias = 0;  // a fork of the child finds private memory
  }
  mutex_.unlock();
  exchange_mutex_.unlock();
}

}  // namespace mpsshim::interposer::forward
