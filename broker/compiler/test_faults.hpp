// SPDX-License-Identifier: Apache-2.0
// What no image is known to do to whoever reads or compiles it.
#pragma once

#include <string_view>

#include "broker/compiler/image_bytes.hpp"

namespace mpsshim::broker {

// Where `mark` stands in the image, the process does what the word behind it says: crash, hang (work without end), fill (take memory without end),
// slow (work for a second).
void fail_as_asked(const ImageBytes& image, std::string_view mark);

}  // namespace mpsshim::broker
