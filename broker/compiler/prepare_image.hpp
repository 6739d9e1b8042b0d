// SPDX-License-Identifier: Apache-2.0
// From an image's bytes to what a driver takes: the entry for the device is chosen and unpacked, machine code and texts are looked through,
// __managed__ variables are placed. Calls no driver, opens no file, keeps nothing.
// The bytes come from a client. The compiler process calls this; an executor only for images that one has got through (replays of its loads).
#pragma once

#include <cstddef>
#include <string>

#include <cuda.h>

#include "broker/compiler/prepared_image.hpp"

namespace mpsshim::broker {

inline constexpr std::size_t kMaxUnpackedBytes = std::size_t{1} << 30;  // of an image, and of all that it is unpacked to
// What an image may grow to whatever its size, and how many times its size beyond that. Code is packed to a tenth or so.
inline constexpr std::size_t kAnyGrowthBytes = std::size_t{32} << 20;
inline constexpr std::size_t kMostGrowth = 64;

struct ImageTarget {
  unsigned compute = 0;      // 90 for compute capability 9.0
  bool runs_texts = false;   // the CPU driver, whose linker gives texts back
  bool has_objects = false;  // of a linked fat binary the client has the objects as well, and comes again with them behind it
  bool opens_assertions = false;  // where that can be done (PreparedImage::assertion_sites)
};

// `log`: why not, in words for the client. CUDA_ERROR_NO_BINARY_FOR_GPU where the objects are wanted. Throws std::bad_alloc.
[[nodiscard]] CUresult prepare_image(const ImageBytes& image, const ImageTarget& target, PreparedImage& prepared, std::string& log);

// An input of a client's linker (cuLinkAddData): all texts and machine code in it are unpacked and checked, within the same bounds. What is of no
// form known here is the driver's to refuse.
[[nodiscard]] CUresult check_link_input(const ImageBytes& input, CUjitInputType type, std::string& log);

}  // namespace mpsshim::broker
