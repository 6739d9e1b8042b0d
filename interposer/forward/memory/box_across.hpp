// SPDX-License-Identifier: Apache-2.0
// Copies of boxes, and of what arrays hold, between two sessions of the process of which neither reaches the other's end: through memory of the
// process, as with NVIDIA's driver between devices that cannot reach each other. Any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/box_copy.hpp"

namespace mpsshim::interposer::forward {

// Sessions, by number.
struct ApartEnds {
  std::uint32_t destination = 0;
  std::uint32_t source = 0;
};

// Nothing: one session has, or reaches, both ends. What an array holds is at no address, so no other session reaches that.
[[nodiscard]] std::optional<ApartEnds> ends_of(const BoxCopy& box);
[[nodiscard]] std::optional<ApartEnds> ends_of(const CUDA_MEMCPY3D& with_array);

// Done when it returns. Behind nothing: the caller has waited for what it comes behind.
[[nodiscard]] CUresult copy_apart(CUDA_MEMCPY3D volume, const ApartEnds& ends);

}  // namespace mpsshim::interposer::forward
