// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/registered.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
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
#include "interposer/log.hpp"
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

// A view of an alias in the program's memory. What lies behind the alias's end has nothing behind it.
std::uint64_t bytes_with_content(const Mapping& view, std::uint64_t alias_bytes) {
  return view.offset_bytes < alias_bytes ? std::min(view.range.size_bytes, alias_bytes - view.offset_bytes) : 0;
}

// A copy in private memory that is then moved to where the view lies. Nobody sees it half done; what others store behind the copy is lost.
bool replace_by_copy(const Mapping& view, std::uint64_t alias, std::uint64_t alias_bytes) {
  const std::uint64_t bytes = view.range.size_bytes;
  void* copy = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return false;
  std::memcpy(copy, host_pointer(alias + view.offset_bytes), bytes_with_content(view, alias_bytes));
  if (mprotect(copy, bytes, view.protection) == 0 &&
      mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, host_pointer(view.range.address)) != MAP_FAILED) {
    return true;
  }
  munmap(copy, bytes);
  return false;
}

// Each page of a private view of a file is the process's own from now on, with what it holds; others store there meanwhile.
void make_own(std::uint64_t address, std::uint64_t bytes) {
  if (madvise(host_pointer(address), bytes, MADV_POPULATE_WRITE) == 0) return;  // since Linux 5.14
  for (std::uint64_t page = address; page < address + bytes; page += proto::kPageBytes) {
    const std::atomic_ref<unsigned char> first(*static_cast<unsigned char*>(host_pointer(page)));
    unsigned char held = first.load(std::memory_order_relaxed);
    while (!first.compare_exchange_weak(held, held)) {
    }
  }
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
  Registration registration{range.size_bytes, 0, {}, flags, context, next_buffer_id()};
  const SignalsHeldBack held_back;  // a handler may fork
  const bool has_whole_pages = range.address % proto::kPageBytes == 0 && range.size_bytes % proto::kPageBytes == 0;
  if (has_whole_pages && is_alone() && is_private(range)) registration.alias = exchange(range, flags, context);
  if (registration.alias != 0) registration.file = PinnedMemory::instance().file_of(registration.alias).value_or(FileIdentity{});
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
  // Alone, and no handler runs: nobody stores here between the copy and the exchange.
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
    const SignalsHeldBack held_back;  // a handler may store, or fork
    const std::lock_guard no_fork(pages_mutex_);
    if (alias != 0) {
      if (const CUresult error = give_back_pages(address); error != CUDA_SUCCESS) return error;
    }
    const std::lock_guard lock(mutex_);
    registrations_.erase(address);
  }
  return alias != 0 ? PinnedMemory::instance().free(host_pointer(alias)) : CUDA_SUCCESS;
}

// The program may have moved them, or given them up and put something else in their place, which is not touched.
bool RegisteredMemory::Registration::is_seen_in(const Mapping& mapping) const {
  return alias != 0 && mapping.is_shared && mapping.is_memory_file && mapping.file == file && mapping.range.address != alias + mapping.offset_bytes;
}

CUresult RegisteredMemory::give_back_pages(std::uint64_t address) {
  Registration registration;
  {
    const std::lock_guard lock(mutex_);
    registration = registrations_.at(address);
  }
  std::vector<Mapping> views;
  MappingReader mappings;
  for (Mapping mapping; mappings.next(mapping);) {
    if (registration.is_seen_in(mapping)) views.push_back(mapping);
  }
  if (!mappings.has_seen_all()) {
    log_line("Memory at %p stays registered: where its pages lie cannot be read (/proc/self/maps). Have descriptors free.", host_pointer(address));
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  const bool is_left_alone = is_alone();
  for (const Mapping& view : views) {
    const bool nobody_stores = is_left_alone || (view.protection & PROT_WRITE) == 0;
    if (nobody_stores && replace_by_copy(view, registration.alias, registration.size_bytes)) continue;
    if (make_private(view, registration)) continue;
    // The program has closed our descriptor: what its other threads store meanwhile is lost.
    if (!replace_by_copy(view, registration.alias, registration.size_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

// A private view of the same file, so that no store is lost. Then each of its pages is made the process's own and the file gives up its: where the
// program lets go of such a page (MADV_DONTNEED), what comes back is blank.
bool RegisteredMemory::make_private(const Mapping& view, const Registration& registration) {
  PinnedMemory& pinned = PinnedMemory::instance();
  if (!pinned.map_private(registration.alias, view.offset_bytes, view.range.size_bytes, host_pointer(view.range.address))) return false;
  const std::uint64_t bytes = bytes_with_content(view, registration.size_bytes);
  make_own(view.range.address, bytes);
  pinned.blank(registration.alias, view.offset_bytes, bytes);
  if (view.protection != (PROT_READ | PROT_WRITE)) (void)mprotect(host_pointer(view.range.address), view.range.size_bytes, view.protection);
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
            each([](RegisteredMemory&) {});  // all of them are made: from now on nothing comes from the heap
            each([](RegisteredMemory& memory) ACQUIRE(memory.pages_mutex_, memory.mutex_) { memory.before_fork(); });
          },
          [] { each([](RegisteredMemory& memory) RELEASE(memory.pages_mutex_, memory.mutex_) { memory.after_fork_in_parent(); }); },
          [] { each([](RegisteredMemory& memory) RELEASE(memory.pages_mutex_, memory.mutex_) { memory.after_fork_in_child(); }); }) == 0;
  return watches;
}

// The child's memory is as it was at the fork, and its own: exchanged pages, which it would share, are replaced by a copy made before. The heap may
// be among them, so nothing is taken from it.
void RegisteredMemory::before_fork() {
  pages_mutex_.lock();
  mutex_.lock();
  if (std::ranges::none_of(registrations_, [](const auto& entry) { return entry.second.alias != 0; })) return;
  MappingReader mappings;
  for (Mapping mapping; mappings.next(mapping);) {
    const auto seen = std::ranges::find_if(registrations_, [&](const auto& entry) { return entry.second.is_seen_in(mapping); });
    if (seen != registrations_.end()) keep_for_child(mapping, seen->second);
  }
  if (mappings.has_seen_all()) return;
  // The kernel does not tell: they are where they were registered, as far as anybody knows.
  drop_snapshots();
  for (const auto& [address, registration] : registrations_) {
    Mapping whole;
    whole.range = {address, registration.size_bytes};
    whole.protection = PROT_READ | PROT_WRITE;
    if (registration.alias != 0) keep_for_child(whole, registration);
  }
}

// A page that says what it is, and the copy behind it. Without memory for it the child has nothing there rather than what is not its own.
void RegisteredMemory::keep_for_child(const Mapping& view, const Registration& registration) {
  const std::uint64_t bytes = view.range.size_bytes;
  void* memory = mmap(nullptr, proto::kPageBytes + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool is_copied = memory != MAP_FAILED;
  if (!is_copied) {
    madvise(host_pointer(view.range.address), bytes, MADV_DONTFORK);
    memory = mmap(nullptr, proto::kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
  }
  auto* const snapshot = new (memory) Snapshot{view.range, is_copied, snapshots_};
  snapshots_ = snapshot;
  if (!is_copied) return;
  std::memcpy(snapshot->copy(), host_pointer(registration.alias + view.offset_bytes), bytes_with_content(view, registration.size_bytes));
  (void)mprotect(snapshot->copy(), bytes, view.protection);
}

void RegisteredMemory::drop_snapshots() {
  while (Snapshot* const snapshot = snapshots_) {
    snapshots_ = snapshot->next;
    if (!snapshot->is_copied) madvise(host_pointer(snapshot->of.address), snapshot->of.size_bytes, MADV_DOFORK);
    munmap(snapshot, proto::kPageBytes + (snapshot->is_copied ? snapshot->of.size_bytes : 0));
  }
}

void RegisteredMemory::after_fork_in_parent() {
  drop_snapshots();
  mutex_.unlock();
  pages_mutex_.unlock();
}

void RegisteredMemory::after_fork_in_child() {
  while (Snapshot* const snapshot = snapshots_) {
    snapshots_ = snapshot->next;
    const AddressRange of = snapshot->of;
    if (snapshot->is_copied) {
      (void)mremap(snapshot->copy(), of.size_bytes, of.size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, host_pointer(of.address));
    }
    munmap(snapshot, proto::kPageBytes);
  }
  for (auto& [address, registration] : registrations_) registration.alias = 0;  // a fork of the child finds private memory
  mutex_.unlock();
  pages_mutex_.unlock();
}

}  // namespace mpsshim::interposer::forward
