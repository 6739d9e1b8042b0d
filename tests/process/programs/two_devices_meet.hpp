// SPDX-License-Identifier: Apache-2.0
// Of two_devices: kernels that meet.
#pragma once

#include <array>

#include "tests/process/programs/two_devices.hpp"

namespace mpsshim::test {

// Kernels of both devices that wait for each other.
class Meeting {
 public:
  explicit Meeting(Sides& sides);
  // One on each device, which ends when the other has begun, and behind it one that adds 1 to the device's data. Over words of host memory, or in
  // each other's memory where the devices are peers.
  void launch(unsigned first, bool by_host);
  [[nodiscard]] unsigned count() const { return count_; }

 private:
  struct Party {
    const Side* side = nullptr;
    CUfunction meet = nullptr;
    CUdeviceptr word = 0;  // in the device's own memory
  };
  std::array<Party, 2> parties_;
  bool are_peers_ = false;
  CUdeviceptr host_words_ = 0;
  unsigned count_ = 0;
};

}  // namespace mpsshim::test
