// SPDX-License-Identifier: Apache-2.0
// The address ranges that this process's device memory lies in: the one it attached with, and further ones where that had no room left. Each is
// kept free in this process as long as it is ours; an added one goes back when the last chunk in it is gone.
// holds() may be called by any thread at any time; everything else by DeviceMemory alone, which lets one thread in at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "gen/cuda_api.hpp"
#include "proto/segment.hpp"

namespace mpsshim::interposer::forward {

class DeviceLeases {
 public:
  [[nodiscard]] static DeviceLeases& instance();

  // True if `address` can only be device memory: it lies in one of the ranges.
  [[nodiscard]] bool holds(std::uint64_t address) const;
  // A further range with room for a chunk of `bytes`. CUDA_ERROR_OUT_OF_MEMORY if the broker has none, or none that is free in this process.
  [[nodiscard]] CUresult add(std::uint64_t bytes);
  void chunk_added(std::uint64_t address);
  // Its ChunkRelease has been posted.
  void chunk_removed(std::uint64_t address);

 private:
  struct Further {
    std::atomic<std::uint64_t> begin{0};  // 0: not in use
    std::atomic<std::uint64_t> size_bytes{0};
    proto::Reservation reservation;
    std::uint32_t chunks = 0;
  };
  static constexpr std::size_t kMost = 16;

  [[nodiscard]] Further* find(std::uint64_t address);
  [[nodiscard]] static CUresult request(std::uint64_t bytes, proto::Reservation& reservation);

  std::array<Further, kMost> further_;
};

}  // namespace mpsshim::interposer::forward
