// SPDX-License-Identifier: Apache-2.0
// What a linker process is asked for, and what becomes of it. Everything that NVIDIA's compiler is to read of a client goes this way: texts of
// images, the inputs of a client's own linker (cuLink*), texts that the driver can only compile as it loads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <cuda.h>

#include "broker/compiler/image_bytes.hpp"

namespace mpsshim::broker {

inline constexpr std::size_t kMaxLinkBytes = std::size_t{256} << 20;  // of a session's inputs, and of a result
inline constexpr std::size_t kLinkLogBytes = 7 * 1024;                // both logs fit into a reply
inline constexpr std::size_t kMaxLinkSteps = 1 << 16;                 // of one request

struct JitOption {
  CUjit_option option{};
  std::uint32_t value = 0;
};

// Those that are a number; the others are addresses of the client's.
[[nodiscard]] bool is_plain_option(std::uint32_t option);

// An input as cuLinkAddData takes it.
struct LinkStep {
  CUjitInputType type{};
  ImageBytes bytes;
  std::string name;
  std::vector<JitOption> options{};
};

struct LinkRequest {
  enum class Task : std::uint64_t {
    link,  // and all of it or nothing: the first step that fails is the end
    load,  // one text, as an image is loaded, and taken out again
    step,  // of a client's linker: what the last of the steps comes to, or the completion, or (no step) the creation
  };
  Task task = Task::link;
  // A client's linker is kept for its next step, under this number; it may be gone by then. `known`: it has been created and has had so many steps
  // less one; 0: it begins anew, with `options`.
  std::uint64_t linker = 0;
  std::uint64_t known = 0;
  bool completes = false;
  std::vector<JitOption> options{};
  std::vector<LinkStep> steps{};
};

struct LinkOutcome {
  enum class End : std::uint64_t {
    done,        // `status` is the driver's
    failed,      // nobody has answered: `status` and the error log say why
    unknown,     // there is no such linker (any more): it is asked for again from its beginning
    no_context,  // nothing has been tried: `status` says why the process has none
    not_there,   // the same, and it never has one on this GPU: who asks does it itself
  };
  End end = End::done;
  CUresult status = CUDA_SUCCESS;
  std::string error_log;
  std::string info_log;
  ImageBytes code;  // with CUDA_SUCCESS, of Task::link and where it completes; whose it is keeps it
};

}  // namespace mpsshim::broker
