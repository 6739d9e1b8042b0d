// SPDX-License-Identifier: Apache-2.0
#include "broker/compiler/test_faults.hpp"

#include <cstddef>
#include <ctime>
#include <memory>
#include <vector>

namespace mpsshim::broker {

void fail_as_asked(const ImageBytes& image, std::string_view mark) {
  const std::string_view text(reinterpret_cast<const char*>(image.data()), image.size());
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return;
  const std::string_view what = text.substr(at + mark.size(), 5);
  volatile char* volatile nowhere = nullptr;
  if (what == "crash") *nowhere = 0;
  while (what.starts_with("hang")) {
  }
  std::vector<std::unique_ptr<std::byte[]>> filled;
  while (what.starts_with("fill")) filled.emplace_back(new std::byte[std::size_t{64} << 20]);
  const std::clock_t began = std::clock();
  while (what.starts_with("slow") && std::clock() - began < CLOCKS_PER_SEC) {
  }
}

}  // namespace mpsshim::broker
