// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "broker/executor/base/turn_budget.hpp"
#include "tests/support/catch.hpp"

using mpsshim::broker::TurnBudget;

namespace {
constexpr std::chrono::milliseconds kPause{2};
}

TEST_CASE("a turn of short steps looks at the clock for so many of them") {
  TurnBudget budget(std::chrono::milliseconds(1), 1'000);
  std::uint64_t steps = 1'000;
  CHECK_FALSE(budget.is_spent_after(steps += 64));  // the first look: it begins
  std::this_thread::sleep_for(kPause);
  for (int i = 0; i < 63; ++i) REQUIRE_FALSE(budget.is_spent_after(++steps));
  CHECK(budget.is_spent_after(++steps));
  CHECK(budget.is_spent());
  CHECK(budget.is_spent_after(++steps));
}

TEST_CASE("a turn looks at the clock behind each step that may have taken long") {
  TurnBudget budget(std::chrono::milliseconds(1), 7);
  CHECK_FALSE(budget.is_spent_after(7));
  CHECK_FALSE(budget.is_spent_after(7));
  std::this_thread::sleep_for(kPause);
  CHECK_FALSE(budget.is_spent_after(8));
  CHECK(budget.is_spent_after(8));
}

TEST_CASE("a turn without a limit has none") {
  TurnBudget budget = TurnBudget::unlimited();
  CHECK_FALSE(budget.look());
  std::this_thread::sleep_for(kPause);
  CHECK_FALSE(budget.look());
}
