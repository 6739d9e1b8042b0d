// SPDX-License-Identifier: Apache-2.0
//
// One kernel launch: checked when it is made (the errors of cuLaunchKernel), then run any number of times by a stream
// or a graph. Holds its arguments and its module.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "broker/cpudriver/modules/module.hpp"
#include "broker/cpudriver/streams/scheduler.hpp"

namespace mpsshim::cpudriver {

struct LaunchShape {
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned dynamic_shared_bytes = 0;
  bool is_cooperative = false;
  std::uint64_t multiprocessors = 0;  // of the green context, a bit each: a cooperative grid has to fit them; 0: all of the device's
};

class KernelLaunch {
 public:
  // Arguments as cuLaunchKernel takes them: one of the two is given, or neither if the kernel has none.
  static CUresult make(std::shared_ptr<Function> function, const LaunchShape& shape, void** parameters, void** extra, KernelLaunch& launch);

  const std::shared_ptr<Function>& function() const { return function_; }
  const LaunchShape& shape() const { return shape_; }
  void set_cooperative(bool is_cooperative) { shape_.is_cooperative = is_cooperative; }

  // Blocks until the kernel has ended. Anything but CUDA_SUCCESS is a fault and has been reported on stderr.
  CUresult run() const;

 private:
  CUresult copy_arguments(void** parameters, void** extra);

  std::shared_ptr<Function> function_;
  LaunchShape shape_;
  std::vector<std::byte> arguments_;
};

Operation as_operation(KernelLaunch launch);

// A library's function comes to the device when it is first needed, and that waits for running kernels.
void bring_to_device(Function& function);

// What a launch of that shape is told: CUDA_SUCCESS, or the error of cuLaunchKernel.
CUresult check_shape(const Function& function, const LaunchShape& shape);

// Blocks of this size that fit a multiprocessor at once, by NVIDIA's rules (cuda_occupancy.h). 0: it cannot run.
int resident_blocks(const Function& function, int block_threads, std::size_t dynamic_shared_bytes);

}  // namespace mpsshim::cpudriver
