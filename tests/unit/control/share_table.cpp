// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/share_table.hpp"

#include "tests/support/catch.hpp"

using mpsshim::broker::control::ShareTable;

TEST_CASE("share table: a name means one object until that, or its session, ends") {
  ShareTable table;
  const auto first = table.name({1, 0x2000'0000'0000});
  const auto second = table.name({1, 0x2000'0020'0000});
  const auto other = table.name({2, 0x2000'0000'0000});
  REQUIRE((first && second && other));
  CHECK_FALSE(*first == *second);
  CHECK_FALSE(*first == *other);
  CHECK(table.name({1, 0x2000'0000'0000}) == first);  // the same again
  REQUIRE(table.find(*other));
  CHECK(table.find(*other)->session == 2);

  table.forget({1, 0x2000'0000'0000});
  CHECK_FALSE(table.find(*first));
  const auto again = table.name({1, 0x2000'0000'0000});
  REQUIRE(again);
  CHECK_FALSE(*again == *first);  // a chunk that comes to lie there later is not what was named

  table.forget_session(1);
  CHECK_FALSE(table.find(*again));
  CHECK_FALSE(table.find(*second));
  CHECK(table.find(*other));
  CHECK_FALSE(table.find({{other->word[0] + 1, other->word[1]}}));
}
