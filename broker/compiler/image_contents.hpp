// SPDX-License-Identifier: Apache-2.0
// What an executor wants to know of the code that a driver is to load, read from it: variables, what its kernels may do. Into PreparedImage, beside its
// bytes, which are the caller's.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "broker/compiler/prepared_image.hpp"

namespace mpsshim::broker {

void note_contents_of_cubin(std::span<const std::byte> cubin, PreparedImage& prepared);
void note_contents_of_ptx(std::string_view text, PreparedImage& prepared);
// The driver takes this one or that which is noted: what is said then holds of either. Where their variables lie is not known.
void add_contents_of_variant(const PreparedImage& other, PreparedImage& prepared);
// These have a place of the client's.
void set_placed_apart(std::span<const image::Placement> placements, PreparedImage& prepared);

}  // namespace mpsshim::broker
