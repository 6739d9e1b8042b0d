// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/progress.hpp"

#include <memory>
#include <set>

#include "tests/support/catch.hpp"

namespace mpsshim::broker {

TEST_CASE("a progress word that wraps has reached what lies just behind it") {
  CHECK(progress_reached(5, 5));
  CHECK_FALSE(progress_reached(4, 5));
  CHECK(progress_reached(3, 0xffff'fff0u));
  CHECK_FALSE(progress_reached(0xffff'fff0u, 3));
}

TEST_CASE("every word of the table can be taken once, the next is refused, and one given back is fresh") {
  const auto table = std::make_unique<ProgressTable>();
  Progress progress(*table, 0x1000);
  std::set<std::uint32_t> taken;
  for (std::uint32_t i = 0; i < kProgressStreams; ++i) {
    const auto index = progress.take();
    REQUIRE(index);
    taken.insert(*index);
  }
  CHECK(taken.size() == kProgressStreams);
  CHECK_FALSE(progress.take());
  progress[7].issued = 3;
  CHECK(progress.is_busy(7));
  progress.give_back(7);
  const auto again = progress.take();
  REQUIRE(again);
  CHECK(*again == 7);
  CHECK_FALSE(progress.is_busy(7));
}

TEST_CASE("the GPU is told the address of `completed`") {
  const auto table = std::make_unique<ProgressTable>();
  Progress progress(*table, reinterpret_cast<CUdeviceptr>(table.get()));
  CHECK(progress.completed(3).address() == reinterpret_cast<CUdeviceptr>(&table->stream[3].completed));
}

}  // namespace mpsshim::broker
