// SPDX-License-Identifier: Apache-2.0
//
// CUDA_MEMCPY2D and CUDA_MEMCPY3D, as copies on streams and in graphs take them.
#pragma once

#include <cuda.h>

#include "broker/cpudriver/streams/commands.hpp"

namespace mpsshim::cpudriver {

CUresult read_copy(const CUDA_MEMCPY2D* description, Copy& copy);
CUresult read_copy(const CUDA_MEMCPY3D* description, Copy& copy);

}  // namespace mpsshim::cpudriver
