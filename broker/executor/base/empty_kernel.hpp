// SPDX-License-Identifier: Apache-2.0
// The executor's own kernels that do nothing take a word, which they do not read: where nodes had been set to a kernel without any parameter, and
// then to kernels with some kilobytes, they got parameters of others; through one with a few bytes they did not (driver 580;
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
