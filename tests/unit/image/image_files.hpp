// SPDX-License-Identifier: Apache-2.0
// The images that CMakeLists.txt had nvcc make.
#pragma once

#include <cstddef>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mpsshim::test {

using Image = std::vector<std::byte>;

inline bool image_exists(const std::string& name) { return std::ifstream(MPSSHIM_TEST_IMAGES "/" + name).good(); }

inline Image load_image(const std::string& name) {
  std::ifstream file(MPSSHIM_TEST_IMAGES "/" + name, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline std::string_view as_text(const Image& image) {
  return {reinterpret_cast<const char*>(image.data()), image.size()};
}

}  // namespace mpsshim::test
