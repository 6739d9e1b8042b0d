// SPDX-License-Identifier: Apache-2.0
//
// What a container holds, in words for whoever is told that it cannot be run.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "proto/image/fatbin.hpp"

namespace mpsshim::image {

// "machine code for sm_75, sm_80 (12 kernels, such as '_Z3addPfS_')"; "PTX for compute_90"; "nothing". Unpacks one entry, within 64 MiB.
[[nodiscard]] std::string contents_in_words(std::span<const FatbinEntry> entries);
// The same of a cubin by itself.
[[nodiscard]] std::string contents_in_words(std::span<const std::byte> cubin);

}  // namespace mpsshim::image
