// SPDX-License-Identifier: Apache-2.0
// cuMemAlloc and cuMemFree over DeviceHeap: gets chunks from the executor and gives them back. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "gen/cuda_api.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/memory/device_heap.hpp"

namespace mpsshim::interposer::forward {

class DeviceMemory {
 public:
  [[nodiscard]] static DeviceMemory& instance();

  [[nodiscard]] CUresult allocate(std::uint64_t bytes, CUcontext context, std::uint64_t& address);
  // Waits for this process's own work, then gives the room back. CUDA_ERROR_INVALID_VALUE if `address` is no allocation's base.
  [[nodiscard]] CUresult free(std::uint64_t address);
  // The allocation that holds `address`.
  [[nodiscard]] std::optional<AddressRange> find(std::uint64_t address) const;
  struct Owner {
    CUcontext context = nullptr;  // current where cuMemAlloc was called
    std::uint64_t buffer_id = 0;  // never reused in this process
  };
  [[nodiscard]] Owner owner_of(std::uint64_t base) const;
  void free_all_of(CUcontext context);

 private:
  static constexpr std::uint64_t kFirstChunkBytes = 2ull << 20;
  static constexpr std::uint64_t kLargestChunkBytes = 64ull << 20;  // larger requests get a chunk of their own
  static constexpr std::uint64_t kKeptBytes = 64ull << 20;          // of empty chunks

  [[nodiscard]] CUresult add_chunk(std::uint64_t bytes);
  void release(AddressRange chunk);

  mutable std::mutex mutex_;
  DeviceHeap heap_;
  std::map<std::uint64_t, Owner> owners_;  // by base
  std::uint64_t last_buffer_id_ = 0;
  std::uint64_t next_chunk_bytes_ = kFirstChunkBytes;
  std::map<std::uint64_t, std::uint64_t> empty_;  // chunks kept though nothing is in them
};

}  // namespace mpsshim::interposer::forward
