// SPDX-License-Identifier: Apache-2.0
// cuMemHostRegister: memory of the application that the GPU is to reach. The GPU works in another process, so the pages must be shared with it:
// they are exchanged for those of a segment, which lies at another address for the executor (the alias, in the pinned lease).
//
// *Exchanged* are whole pages that are private to this process, and only while no other thread of the application could store into them
// meanwhile; such memory has a device pointer, the alias. Everything else is *kept*: registered, but copies from and to it go through staging
// memory, and there is no device pointer (CUDA_ERROR_NOT_SUPPORTED). Both are right; kept memory is slower and its copies wait.
// Unregistering makes exchanged pages private again where they lie by then, and no store is lost; a child of fork() gets a copy of its own, as it
// would.
// Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/address_range.hpp"
#include "interposer/forward/memory/mappings.hpp"
#include "proto/channel.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

class RegisteredMemory {
 public:
  [[nodiscard]] static RegisteredMemory& instance();

  [[nodiscard]] CUresult add(AddressRange range, std::uint32_t flags, CUcontext context);
  // CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED if `address` is not where a registration begins. Waits for this process's own work.
  [[nodiscard]] CUresult remove(std::uint64_t address);
  struct Found {
    AddressRange range;
    std::uint64_t alias = 0;  // of range.address; 0: kept
    std::uint32_t flags = 0;
    CUcontext context = nullptr;
    std::uint64_t buffer_id = 0;
  };
  // The registration that holds `address`: the application's, or an alias.
  [[nodiscard]] std::optional<Found> find(std::uint64_t address) const;
  [[nodiscard]] std::optional<Found> find_alias(std::uint64_t address) const;
  void remove_all_of(CUcontext context);

 private:
  struct Registration {
    std::uint64_t size_bytes = 0;
    std::uint64_t alias = 0;
    FileIdentity file;  // the alias's
    std::uint32_t flags = 0;
    CUcontext context = nullptr;
    std::uint64_t buffer_id = 0;

    // This is the program's view of exchanged pages, or of some.
    [[nodiscard]] bool is_seen_in(const Mapping& mapping) const;
  };
  // Of such a view, while the process forks: a page of its own, and the copy behind it.
  struct Snapshot {
    AddressRange of;
    bool is_copied = false;  // there was memory for it
    Snapshot* next = nullptr;

    [[nodiscard]] void* copy() { return reinterpret_cast<char*>(this) + proto::kPageBytes; }
  };

  // Between these the process forks: the locks are held. False: the handlers that call them, for every session, cannot be had.
  [[nodiscard]] static bool watch_forks();
  void before_fork() ACQUIRE(pages_mutex_, mutex_);
  void after_fork_in_parent() RELEASE(pages_mutex_, mutex_);
  void after_fork_in_child() RELEASE(pages_mutex_, mutex_);

  [[nodiscard]] std::uint64_t exchange(AddressRange range, std::uint32_t flags, CUcontext context) REQUIRES(order_mutex_);
  void keep_for_child(const Mapping& view, const Registration& registration) REQUIRES(mutex_);
  void drop_snapshots() REQUIRES(mutex_);
  // The registration's pages are the process's own again, as they are now. With an error some may not be, and another call goes on.
  [[nodiscard]] CUresult give_back_pages(std::uint64_t address) REQUIRES(pages_mutex_);
  [[nodiscard]] static bool make_private(const Mapping& view, const Registration& registration);

  Mutex order_mutex_;                                                       // registering and unregistering
  Mutex pages_mutex_;                                                       // before mutex_: nobody forks while pages are given back
  mutable Mutex mutex_;                                                     // registrations_
  std::map<std::uint64_t, Registration> registrations_ GUARDED_BY(mutex_);  // by address
  Snapshot* snapshots_ GUARDED_BY(mutex_) = nullptr;                        // while the process forks
  std::atomic<bool> has_been_used_{false};
};

}  // namespace mpsshim::interposer::forward
