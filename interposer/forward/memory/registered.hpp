// SPDX-License-Identifier: Apache-2.0
// cuMemHostRegister: memory of the application that the GPU is to reach. The GPU works in another process, so the pages must be shared with it:
// they are exchanged for those of a segment, which lies at another address for the executor (the alias, in the pinned lease).
//
// *Exchanged* are pages that are private to this process: by a copy where no other thread of the application could store into them meanwhile, else by
// page_exchange.hpp. Such memory has a device pointer, the alias. What cannot be exchanged is *kept*: registered, but copies from and to it go
// through staging memory, and there is no device pointer (CUDA_ERROR_NOT_SUPPORTED). Both are right; kept memory is slower and its copies wait.
// Pages are whole: what else lies in the first and the last one is exchanged with them.
// Unregistering makes exchanged pages private again without a copy, so no store is lost; a child of fork() gets a copy of its own, as it would.
// Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/address_range.hpp"
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
  // The alias of `address`, which lies in a registration; what has been kept is exchanged now if it can be. 0: it cannot be.
  [[nodiscard]] std::uint64_t alias_of(std::uint64_t address);
  void remove_all_of(CUcontext context);

 private:
  struct Registration {
    std::uint64_t size_bytes = 0;
    AddressRange pages;       // that hold it
    std::uint64_t alias = 0;  // of the pages; 0: kept
    std::uint32_t flags = 0;
    CUcontext context = nullptr;
    std::uint64_t buffer_id = 0;
    void* snapshot = nullptr;  // while the process forks
  };

  [[nodiscard]] static Found found(std::uint64_t begin, const Registration& registration);
  // Between these the process forks: the locks are held. False: the handlers that call them, for every session, cannot be had.
  [[nodiscard]] static bool watch_forks();
  void before_fork() ACQUIRE(exchange_mutex_, mutex_);
  void after_fork_in_parent() RELEASE(exchange_mutex_, mutex_);
  void after_fork_in_child() RELEASE(exchange_mutex_, mutex_);

  // The pages' alias, or 0: they are as they were. `is_asked_for`: whatever it may cost system calls of other threads meanwhile.
  [[nodiscard]] std::uint64_t exchange(const Registration& registration, bool is_asked_for) REQUIRES(order_mutex_);
  void make_private(const Registration& registration, std::uint64_t bytes);

  Mutex order_mutex_;                                                       // registering and unregistering
  Mutex exchange_mutex_;                                                    // no fork meanwhile; before mutex_
  mutable Mutex mutex_;                                                     // registrations_
  std::map<std::uint64_t, Registration> registrations_ GUARDED_BY(mutex_);  // by address
  std::atomic<bool> has_been_used_{false};
};

}  // namespace mpsshim::interposer::forward
