// SPDX-License-Identifier: Apache-2.0
// A PreparedImage as a memory file of sealed content, from the compiler process to an executor. Bytes that are the image's own stay there: the
// file says where. Whoever reads it maps both files and copies names alone.
// The reader trusts nothing: its writer has read a stranger's image, and may be his by now. What it gets is well-formed and says anything.
#pragma once

#include <string>

#include <cuda.h>

#include "broker/compiler/part_file.hpp"
#include "broker/compiler/prepared_image.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

// What has become of an image.
struct Preparation {
  CUresult status = CUDA_SUCCESS;
  std::string log;  // why not, without control characters
  PreparedImage image;
};

// Invalid: there is no memory for it (errno).
[[nodiscard]] proto::FileDescriptor write_prepared(const Preparation& preparation, const ImageBytes& image);

// False: it is not such a file. `image`: what it was made of.
[[nodiscard]] bool read_prepared(const proto::FileDescriptor& file, const ImageBytes& image, Preparation& preparation);

// What a driver finds by following its own form (it is told no length) lies within these bytes.
[[nodiscard]] bool ends_within(const ImageBytes& content);

}  // namespace mpsshim::broker
