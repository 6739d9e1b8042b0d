// SPDX-License-Identifier: Apache-2.0
// The executor's own kernels that do nothing take as many parameters as any kernel in a graph's node (kMostNodeParameterBytes), and read none. Nodes
// are made with them, so that none ever has to grow: where nodes were set to kernels with more parameters than they were made with, they got
// parameters of others (driver 580; docs/experiments/2026-11-26-parameters-of-other-nodes.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace mpsshim::broker {

// A launch with more is in no node of the executor's.
inline constexpr std::uint32_t kMostNodeParameterBytes = 4'096;

struct EmptyKernelParameters {
  EmptyKernelParameters() = default;
  EmptyKernelParameters(const EmptyKernelParameters&) = delete;

  void* addresses[1] = {const_cast<std::byte*>(kUnread)};  // kernelParams, of which the driver takes a copy

 private:
  static constexpr std::byte kUnread[kMostNodeParameterBytes] = {};
};

}  // namespace mpsshim::broker
