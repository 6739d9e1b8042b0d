// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/process/driver_areas.hpp"

#include "tests/support/catch.hpp"

namespace mpsshim::broker::driver_areas {
namespace {

TEST_CASE("areas of a size lie in a row, whatever other sizes are taken in between") {
  CHECK(next_place(32u << 20) == 0);  // not yet
  keep_in_order();
  CHECK(next_place(kSmallestBytes - 1) == 0);
  const std::uintptr_t first = next_place(32u << 20);
  REQUIRE(first != 0);
  CHECK(first % (32u << 20) == 0);
  const std::uintptr_t other = next_place(100u << 20);
  CHECK(other % (128u << 20) == 0);
  CHECK(next_place(32u << 20) == first + (32u << 20));
  CHECK(next_place((16u << 20) + 4096) == first + (64u << 20));
  CHECK(next_place(100u << 20) == other + (128u << 20));
  CHECK(next_place(std::size_t{1} << 40) == 0);
}

TEST_CASE("a row that is used up leaves the rest to the kernel") {
  keep_in_order();
  const std::size_t bytes = std::size_t{1} << kLargestLog2;
  for (std::size_t i = 0; i < kRowBytes / bytes; ++i) CHECK(next_place(bytes) != 0);
  CHECK(next_place(bytes) == 0);
}

}  // namespace
}  // namespace mpsshim::broker::driver_areas
