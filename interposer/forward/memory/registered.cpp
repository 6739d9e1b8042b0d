// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/registered.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include <dirent.h>
#include <pthread.h>
#include <sys/mman.h>

#include "interposer/forward/hooks.hpp"
#include "interposer/forward/memory/allocation_owner.hpp"
#include "interposer/forward/memory/copy_crew.hpp"
#include "interposer/forward/memory/device_leases.hpp"
#include "interposer/forward/memory/external_memory.hpp"
#include "interposer/forward/memory/mappings.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/forward/memory/populate.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/signals_held_back.hpp"
#include "proto/channel.hpp"

namespace mpsshim::interposer::forward {

namespace {

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

// A copy of `bytes` at `from`, in private memory that is then moved to `to` in place of what lies there. Nobody sees it half done; what others store
// behind the copy is lost.
bool replace_by_copy(std::uint64_t to, const void* from, std::uint64_t bytes, int protection) {
  void* copy = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return false;
  const SignalsHeldBack held_back;  // a handler of the program's stores as well
  std::memcpy(copy, from, bytes);
  if (mprotect(copy, bytes, protection) == 0 && mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, host_pointer(to)) != MAP_FAILED)
    return true;
  munmap(copy, bytes);
  return false;
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
  Registration registration{range.size_bytes, 0, flags, context, next_buffer_id()};
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
  const SignalsHeldBack held_back;
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
  {
    const std::lock_guard no_fork(pages_mutex_);
    {
      const std::lock_guard lock(mutex_);
      registrations_.erase(address);
    }
    if (alias == 0) return CUDA_SUCCESS;
    give_back_pages(alias);
  }
  return PinnedMemory::instance().free(host_pointer(alias));
}

// The program may have moved them, or given them up and put something else in their place, which is not touched.
std::vector<Mapping> RegisteredMemory::views_of(std::uint64_t alias, const std::vector<Mapping>& mappings) {
  std::vector<Mapping> views;
  const std::optional<FileIdentity> file = PinnedMemory::instance().file_of(alias);
  if (!file) return views;
  std::ranges::copy_if(mappings, std::back_inserter(views),
                       [&](const Mapping& mapping) { return mapping.file == *file && mapping.range.address != alias + mapping.offset_bytes; });
  return views;
}

void RegisteredMemory::give_back_pages(std::uint64_t alias) {
  const bool nobody_stores = is_alone();
  for (const Mapping& view : views_of(alias, shared_mappings())) {
    if (!nobody_stores && make_private(view, alias)) continue;
    // Else the program has closed our descriptor, and what its other threads store meanwhile is lost. No memory for it: the pages stay as they are,
    // shared with nobody.
    const std::uint64_t present = alias + view.offset_bytes;
    (void)replace_by_copy(view.range.address, host_pointer(present), view.range.size_bytes, view.protection);
  }
}

// While others store: a private view of the same file, so that what was stored so far is in it. Then each of its pages is made the process's own and
// the file's is given up: where the program lets go of such a page (MADV_DONTNEED), what comes back is blank.
bool RegisteredMemory::make_private(const Mapping& view, std::uint64_t alias) {
  void* const at = host_pointer(view.range.address);
  if (!PinnedMemory::instance().map_private(alias, view.offset_bytes, view.range.size_bytes, at)) return false;
  if (madvise(at, view.range.size_bytes, MADV_POPULATE_WRITE) == 0) {
    (void)madvise(host_pointer(alias + view.offset_bytes), view.range.size_bytes, MADV_REMOVE);
  }
  if (view.protection != (PROT_READ | PROT_WRITE)) mprotect(at, view.range.size_bytes, view.protection);
  return true;
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
  static const bool watches =
      pthread_atfork(
          [] {
            locked = session_count();
            each([](RegisteredMemory& memory) ACQUIRE(memory.pages_mutex_, memory.mutex_) { memory.before_fork(); });
          },
          [] { each([](RegisteredMemory& memory) RELEASE(memory.pages_mutex_, memory.mutex_) { memory.after_fork_in_parent(); }); },
          [] { each([](RegisteredMemory& memory) RELEASE(memory.pages_mutex_, memory.mutex_) { memory.after_fork_in_child(); }); }) == 0;
  return watches;
}

// The child's memory is as it was at the fork, and its own: exchanged pages, which it would share, are replaced by a copy made before.
void RegisteredMemory::before_fork() {
  pages_mutex_.lock();
  mutex_.lock();
  const bool has_exchanged = std::ranges::any_of(registrations_, [](const auto& entry) { return entry.second.alias != 0; });
  const std::vector<Mapping> mappings = has_exchanged ? shared_mappings() : std::vector<Mapping>();
  for (const auto& [address, registration] : registrations_) {
    if (registration.alias == 0) continue;
    for (const Mapping& view : views_of(registration.alias, mappings)) {
      const std::uint64_t bytes = view.range.size_bytes;
      void* copy = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (copy == MAP_FAILED) {
        madvise(host_pointer(view.range.address), bytes, MADV_DONTFORK);  // no copy: the child has nothing there rather than what is not its own
        copy = nullptr;
      } else {
        std::memcpy(copy, host_pointer(registration.alias + view.offset_bytes), bytes);
        mprotect(copy, bytes, view.protection);
      }
      snapshots_.push_back({view.range, copy});
    }
  }
}

void RegisteredMemory::after_fork_in_parent() {
  for (const Snapshot& snapshot : snapshots_) {
    if (snapshot.copy == nullptr) {
      madvise(host_pointer(snapshot.of.address), snapshot.of.size_bytes, MADV_DOFORK);
    } else {
      munmap(snapshot.copy, snapshot.of.size_bytes);
    }
  }
  snapshots_.clear();
  mutex_.unlock();
  pages_mutex_.unlock();
}

void RegisteredMemory::after_fork_in_child() {
  for (const Snapshot& snapshot : snapshots_) {
    const std::uint64_t bytes = snapshot.of.size_bytes;
    if (snapshot.copy != nullptr) (void)mremap(snapshot.copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, host_pointer(snapshot.of.address));
  }
  snapshots_.clear();
  for (auto& [address, registration] : registrations_) registration.alias = 0;  // a fork of the child finds private memory
  mutex_.unlock();
  pages_mutex_.unlock();
}

}  // namespace mpsshim::interposer::forward
