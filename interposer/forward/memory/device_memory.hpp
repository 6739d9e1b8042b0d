// SPDX-License-Identifier: Apache-2.0
// cuMemAlloc and cuMemFree over DeviceArena: gets chunks from the executor and gives them back. Any thread.
// While one thread waits for a chunk the others go on allocating and freeing what is there.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/channel/lock.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/memory/device_arena.hpp"
#include "interposer/forward/memory/device_leases.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

class DeviceMemory {
 public:
  [[nodiscard]] static DeviceMemory& instance();

  [[nodiscard]] CUresult allocate(std::uint64_t bytes, CUcontext context, std::uint64_t& address);
  // In a chunk of its own, from its first address; give_back() ends it. 0: there is no memory for that, or as much is lost to the ends of such chunks
  // as may be.
  [[nodiscard]] std::uint64_t allocate_alone(std::uint64_t bytes);
  // Waits for this process's own work, then gives the room back. CUDA_ERROR_INVALID_VALUE if `address` is no allocation's base.
  [[nodiscard]] CUresult free(std::uint64_t address);
  // The same for memory that nothing uses any more.
  [[nodiscard]] CUresult give_back(std::uint64_t address);
  using Allocation = DeviceArena::Allocation;
  // The allocation that holds `address`.
  [[nodiscard]] std::optional<Allocation> find(std::uint64_t address) const;
  void free_all_of(CUcontext context);
  // f(DeviceLeases&), with nobody else asking for leases or ending them: for ranges of addresses beside the chunks (VirtualMemory).
  template <typename F>
  auto with_leases(F&& f) {
    const std::lock_guard growing(growth_mutex_);
    return f(DeviceLeases::instance());
  }
  // f(std::span<const AddressRange>) with all chunks, none of which comes or goes meanwhile.
  template <typename F>
  auto with_chunks(F&& f) {
    const std::lock_guard growing(growth_mutex_);
    const std::vector<AddressRange> all = chunks();
    return f(std::span<const AddressRange>(all));
  }
  // A call that takes device memory: where there is none, what is kept for later is given back and the call made again.
  template <typename Record, typename Reply>
  [[nodiscard]] CUresult call_with_room(const Record& record, Reply& reply) {
    const CUresult error = session().channel().call({}, record, {}, reply);
    return error == CUDA_ERROR_OUT_OF_MEMORY && release_empty() ? session().channel().call({}, record, {}, reply) : error;
  }
  // Of chunks that are kept though nothing is in them: free to this process, taken to the driver.
  [[nodiscard]] std::uint64_t kept_bytes() const;

 private:
  [[nodiscard]] std::vector<AddressRange> chunks() const;
  // True if there was something to give back.
  [[nodiscard]] bool release_empty();
  [[nodiscard]] bool try_allocate(std::uint64_t bytes, CUcontext context, std::uint64_t& address);
  [[nodiscard]] CUresult add_chunk(std::uint64_t bytes) REQUIRES(growth_mutex_);
  // One that others reach as they reach all chunks.
  [[nodiscard]] CUresult make_chunk(std::uint64_t wanted, std::uint64_t exact, AddressRange& chunk) REQUIRES(growth_mutex_);
  [[nodiscard]] CUresult create_chunk(std::uint64_t chunk_bytes, AddressRange& chunk);
  [[nodiscard]] CUresult create_chunk_growing(std::uint64_t chunk_bytes, AddressRange& chunk) REQUIRES(growth_mutex_);
  [[nodiscard]] CUresult release(std::span<const AddressRange> chunks) REQUIRES(growth_mutex_);

  Mutex growth_mutex_;         // held by the one thread that asks for a chunk or gives some back; never taken under mutex_
  mutable ChannelLock mutex_;  // held for a few map operations: contending threads look for a moment before they sleep
  DeviceArena arena_ GUARDED_BY(mutex_);
  struct Alone {
    std::uint64_t chunk_bytes = 0;
    std::uint64_t lost_bytes = 0;
  };
  std::map<std::uint64_t, Alone> alone_ GUARDED_BY(mutex_);  // by address
  std::uint64_t alone_lost_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace mpsshim::interposer::forward
