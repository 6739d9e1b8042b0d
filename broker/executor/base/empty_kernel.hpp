// SPDX-License-Identifier: Apache-2.0
// The executor's own kernels that do nothing take a word, which they do not read: a node that is set to a kernel without any parameter gives up the
// memory that it had for them, and then two nodes were seen with the same (driver 580;
// docs/experiments/2026-11-26-parameters-of-other-nodes.md).
#pragma once

#include <cstdint>

namespace mpsshim::broker {

struct EmptyKernelParameters {
  EmptyKernelParameters() = default;
  EmptyKernelParameters(const EmptyKernelParameters&) = delete;

  std::uint64_t unread = 0;
  void* addresses[1] = {&unread};  // kernelParams
};

}  // namespace mpsshim::broker
