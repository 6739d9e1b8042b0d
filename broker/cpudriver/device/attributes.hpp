// SPDX-License-Identifier: Apache-2.0
//
// The facts of a CPU device: all have the same, but for who they are (devices.hpp). Read-only after the first use. Where an attribute is a property
// of a GPU that a CPU has no counterpart for (textures, clocks), the value of a Turing board is given, so that programs that divide by it or compare
// it with a minimum behave as they do there; where it is a promise (VMM, memory operations, cooperative launch), it says what this driver does.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>

namespace mpsshim::cpudriver {

inline constexpr int kDriverVersion = 13000;
inline constexpr int kFirstAttribute = 1;
inline constexpr int kLastAttribute = 147;  // the last of CUDA 13.0, however old the toolkit that this is built with
inline constexpr char kDeviceName[] = "mpsshim CPU reference device";
inline constexpr unsigned kMultiprocessors = 16;

// False: no such attribute.
[[nodiscard]] bool device_attribute(int attribute, int& value);
// For attributes that exist.
int attribute_of(CUdevice_attribute attribute);

}  // namespace mpsshim::cpudriver
