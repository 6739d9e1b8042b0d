// SPDX-License-Identifier: Apache-2.0
// Images that the broker's driver cannot run. Where that is the CPU driver, the program's user is told why on standard error, once for each
// reason. On a GPU nothing is said, as natively.
//
// Libraries of NVIDIA's ignore that the runtime could not load a kernel of theirs: cuSOLVER's LU goes on without its matrix products and ends
// with status 0. The runtime loads a library's image when the first kernel of it is launched or asked for, so its refusal is a launch that did
// not happen: it ends the session, and no call gives out what was computed without that kernel. A module is loaded by a program that looks at
// the result and may have another image to try: its refusal is that call's alone (docs/differences.md, "The CPU driver").
//
// Any thread. What they return is what the API call returns.
#pragma once

#include <string>

#include "gen/cuda_api.hpp"

namespace mpsshim::interposer::forward {

// cuModuleLoad*, cuLibraryLoad* have failed with `error`; `why`: the driver's words, may be empty.
[[nodiscard]] CUresult refused_module(CUresult error, const std::string& why);
[[nodiscard]] CUresult refused_library(CUresult error, const std::string& why);

}  // namespace mpsshim::interposer::forward
