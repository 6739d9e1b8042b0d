// SPDX-License-Identifier: Apache-2.0
// A load that waits for the control process to say where its session finds a blank heap of the device.
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {

TEST_CASE("a load waits for its heap, those behind it as well, and later ones wait for nothing") {
  WireExecutor executor;
  WireClient client(executor);
  int acts = 0;
  client.session().seek_blank_heap([&] { ++acts; });
  client.session().seek_blank_heap([&] { ++acts; });
  CHECK(acts == 0);
  client.session().heap_given();
  CHECK(acts == 2);
  client.session().seek_blank_heap([&] { ++acts; });
  CHECK(acts == 3);
}

TEST_CASE("a session that ends waits for no heap: nobody would answer, and it would never be taken down") {
  WireExecutor executor;
  WireClient client(executor);
  int acts = 0;
  client.session().seek_blank_heap([&] { ++acts; });
  client.session().fail("ModuleLoad", "it is a test's");
  client.session().seek_blank_heap([&] { ++acts; });  // of a load that was under way
  CHECK(acts == 1);
  client.session().heap_given();  // sent before it failed
  CHECK(acts == 1);
}

}  // namespace mpsshim::test
