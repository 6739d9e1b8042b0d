// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace mpsshim::test {

// Loads the image of that name: "ok" if the driver took it and its kernel could be looked up, else the error. Names: images.cpp.
[[nodiscard]] std::string load_image(const std::string& name);

}  // namespace mpsshim::test
