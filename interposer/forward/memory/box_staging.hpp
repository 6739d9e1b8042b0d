// SPDX-License-Identifier: Apache-2.0
// Boxes from and to pageable memory: packed without gaps into pieces of staging memory, as many rows at a time as a piece holds. As
// Staging's copies of one dimension, an upload has read its source when it returns, and a download has written its destination.
#pragma once

#include "interposer/forward/memory/box_copy.hpp"

namespace mpsshim::interposer::forward {

void describe_box(proto::CopyBoxRecord& record, const BoxCopy& box, Space to, Space from);

// `space`: of the side that is not pageable.
[[nodiscard]] CUresult upload_box(Stream& stream, const BoxCopy& box, Space space, bool is_synchronous);
[[nodiscard]] CUresult download_box(Stream& stream, const BoxCopy& box, Space space);

}  // namespace mpsshim::interposer::forward
