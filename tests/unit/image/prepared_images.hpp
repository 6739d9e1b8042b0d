// SPDX-License-Identifier: Apache-2.0
// What the compiler process makes of an image, for tests: whole, in this process.
#pragma once

#include "broker/compiler/prepare_image.hpp"
#include "broker/compiler/prepared_file.hpp"
#include "image_files.hpp"

namespace mpsshim::test {

inline broker::ImageBytes bytes_of(const Image& image) { return broker::ImageBytes(image); }

inline broker::Preparation prepared_of(const broker::ImageBytes& image, unsigned compute = 90, bool runs_texts = false,
                                       bool opens_assertions = false) {
  broker::Preparation made;
  made.status = broker::prepare_image(image, {compute, runs_texts, false, opens_assertions}, made.image, made.log);
  return made;
}

inline bool lies_in(const broker::ImageBytes& part, const broker::ImageBytes& whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

}  // namespace mpsshim::test
