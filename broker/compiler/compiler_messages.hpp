// SPDX-License-Identifier: Apache-2.0
// Messages between the control process and a compiler or a linker process, over the SOCK_SEQPACKET pair that is the latter's descriptor 3. One
// binary's, so the layout is private to it. The control process believes nothing that comes back: a stranger's image may have taken the process over.
//
//   control process                       compiler process
//                                      ←  CompilerAnswer 0, once: which of its restraints could not be put on
//   CompilerJob + [image]              →  CompilerAnswer + [prepared_file.hpp]     one job at a time; without a file: `status` alone
//   CompilerJob + [request]            →  CompilerAnswer + [outcome]               a linker process: link_file.hpp
#pragma once

#include <cstdint>

namespace mpsshim::broker {

inline constexpr int kCompilerControlFd = 3;

struct CompilerJob {
  std::uint64_t number = 0;   // never 0
  std::uint32_t compute = 0;  // ImageTarget, or the CUjitInputType of a linker's input
  std::uint32_t flags = 0;    // kImage...
};
static_assert(sizeof(CompilerJob) == 16);

struct CompilerAnswer {
  std::uint64_t number = 0;
  std::uint32_t status = 0;     // CUresult: with a file CUDA_SUCCESS, or it may be another file next time; of number 0: an errno
  std::uint32_t restraint = 0;  // with number 0: Restraint of the sandbox that failed
};
static_assert(sizeof(CompilerAnswer) == 16);

}  // namespace mpsshim::broker
