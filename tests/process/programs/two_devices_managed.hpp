// SPDX-License-Identifier: Apache-2.0
// Of two_devices: managed memory in common.
#pragma once

#include <array>
#include <random>
#include <vector>

#include "tests/process/programs/two_devices.hpp"

namespace mpsshim::test {

// Managed memory of either device, which kernels of both and the host change in turns; what it should be is known.
class ManagedForBoth {
 public:
  explicit ManagedForBoth(Sides& sides);
  // So many steps, drawn from changes by either device and by the host, copies, prefetches and looks; then a look at all of it.
  void work(unsigned steps);

 private:
  struct Buffer {
    CUdeviceptr memory = 0;
    std::vector<unsigned> model;
  };
  [[nodiscard]] unsigned draw(unsigned below);
  void add_by_device(Buffer& buffer);
  void change_by_host(Buffer& buffer);
  void copy_between();
  void prefetch(const Buffer& buffer);
  void check();
  void finish();

  Sides& sides_;
  std::array<Buffer, 2> buffers_;
  unsigned last_ = 0;       // the side that has worked last
  std::mt19937 random_{7};  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same steps each time
};

}  // namespace mpsshim::test
