// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {

// Every copy and memset that takes a device pointer, at `address`, eight bytes each; the other side of a copy is `own`, whose contents are
// checked afterwards. Answers "CALL=RESULT" for each.
[[nodiscard]] std::string touch_foreign(CUdeviceptr address, Words& own);

}  // namespace mpsshim::test
