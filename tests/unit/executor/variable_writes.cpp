// SPDX-License-Identifier: Apache-2.0
// Which launches and copies count as writes to a session's variables.
#include "tests/unit/executor/support/variables_scene.hpp"

namespace mpsshim::broker {

using namespace variables_scene;

TEST_CASE("a launch counts only if its kernel may write to a variable") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  const ImageRef image = image_of({{0x1000, 4, bytes({1, 2, 3, 4})}, {0x2000, 4, {}}});
  variables.add(kModule, image);
  const proto::FileDescriptor file = broker.file();
  variables.note_launch(Kernel(image, {}));
  variables.note_write(0x1004, 0x2000 - 0x1004);  // between the two
  CHECK(variables.copies(kBatch).pieces.empty());
  REQUIRE(next_life(file));
  SECTION("a kernel") { variables.note_launch(Kernel(image, {1})); }
  SECTION("a copy") { variables.note_write(0x1ff0, 17); }
  CHECK_FALSE(next_life(file));
  const SessionVariables::Copies copies = variables.copies(kBatch);
  REQUIRE(copies.pieces.size() == 1);  // the other one is as it was
  CHECK(copies.pieces[0].address == 0x2000);
  REQUIRE(copy(variables, copies, bytes({6, 6, 6, 6})));
  const auto kept = next_life(file);
  REQUIRE(kept);
  CHECK(kept->variables.at(0).content == bytes({1, 2, 3, 4}));
  CHECK(kept->variables.at(1).content == bytes({6, 6, 6, 6}));
}

TEST_CASE("once a variable's address may be anywhere every launch counts for it, also in the next executor") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  const ImageRef image = image_of({{0x1000, 4, {}}, {0x2000, 4, {}}});
  const Kernel harmless(image, {});
  variables.add(kModule, image);
  const proto::FileDescriptor file = broker.file();
  SECTION("left by a kernel") {
    variables.note_launch(Kernel(image, {1}, true));
    REQUIRE(copy(variables, variables.copies(kBatch), bytes({1})));
  }
  SECTION("given to the client") { variables.give_out(kModule, 0x2000, false); }
  SECTION("given to the client, with a kernel under way that may find it") {
    variables.give_out(kModule, 0x2000, true);
    CHECK_FALSE(next_life(file));
    REQUIRE(copy(variables, variables.copies(kBatch), bytes({1})));
  }
  REQUIRE(next_life(file));
  CHECK(variables.may_write(harmless));
  Broker next_broker;
  SessionVariables next(1, *next_broker.link);
  REQUIRE(next.adopt(file));
  const ImageRef again = image_of({{0x1000, 4, {}}, {0x2000, 4, {}}});
  next.restored(kModule, again);
  next.note_launch(Kernel(again, {}));
  CHECK_FALSE(next_life(file));
  const SessionVariables::Copies copies = next.copies(kBatch);
  REQUIRE(copies.pieces.size() == 1);
  CHECK(copies.pieces[0].address == 0x2000);
}

TEST_CASE("no launch counts for a constant, whoever has its address, a copy does") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  const ImageRef image = image_of({{0x1000, 4, {}}});
  image->changes->set_constant(0);
  variables.add(kModule, image);
  const proto::FileDescriptor file = broker.file();
  variables.give_out(kModule, 0x1000, true);
  CHECK_FALSE(variables.may_write(Kernel(image, {})));
  CHECK(next_life(file));
  variables.note_write(0x1000, 4);
  CHECK_FALSE(next_life(file));
  CHECK(variables.copies(kBatch).pieces.size() == 1);
}

TEST_CASE("an address that another session has let out is of no matter to the next one that has the copy") {
  Broker broker;
  SessionVariables first(1, *broker.link);
  const ImageRef image = image_of({{0x1000, 4, {}}});
  first.add(kModule, image);
  first.give_out(kModule, 0x1000, false);
  SessionVariables second(2, *broker.link);
  second.add(kModule, image);
  CHECK_FALSE(second.may_write(Kernel(image, {})));
}

}  // namespace mpsshim::broker
