// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "gen/cuda_api.hpp"

namespace mpsshim::interposer::forward {

// What pointer attributes tell of an allocation besides its range.
struct AllocationOwner {
  CUcontext context = nullptr;  // current where it was made; null where it belongs to the device (pools, mapped memory)
  std::uint64_t buffer_id = 0;  // never reused in this process
};

[[nodiscard]] inline std::uint64_t next_buffer_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace mpsshim::interposer::forward
