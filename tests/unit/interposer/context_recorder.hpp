// SPDX-License-Identifier: Apache-2.0
// In place of the forwarding half, for tests of contexts: what it was asked for is recorded, and it answers as a test wants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gen/cuda_api.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::test {

struct Recorder {
  int sessions = 0;
  int renewed = 0;
  std::size_t raised = 0;
  CUresult raise_result = CUDA_ERROR_NOT_SUPPORTED;
  std::size_t persisting_bytes = 0;
  int synchronised = 0;
  std::vector<CUcontext> released;
  CUresult session_result = CUDA_SUCCESS;
  std::uint32_t session_index = 0;  // for which the last of these was
};
inline Recorder recorder;

proto::DriverFacts& facts();

// Fresh devices and an empty stack; contexts of earlier cases stay, as they would in a program.
void begin();

CUcontext current();
CUcontext create();

}  // namespace mpsshim::test
