// SPDX-License-Identifier: Apache-2.0
// What a session keeps of its modules' variables, and when a later executor may believe it.
#include "tests/unit/executor/support/variables_scene.hpp"

namespace mpsshim::broker {

using namespace variables_scene;

TEST_CASE("a module that no kernel has touched is kept as it was loaded") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  variables.add(kModule, image_of({{0x1000, 4, bytes({1, 2, 3, 4})}, {0x2000, 3, {}}}, 9));
  const proto::FileDescriptor file = broker.file();
  const auto kept = next_life(file);
  REQUIRE(kept);
  CHECK(kept->copy == 9);
  REQUIRE(kept->variables.size() == 2);
  CHECK(kept->variables[0].address == 0x1000);
  CHECK(kept->variables[0].content == bytes({1, 2, 3, 4}));
  CHECK(kept->variables[1].address == 0x2000);
  CHECK(kept->variables[1].content == bytes({0, 0, 0}));
  CHECK_FALSE(next_life(file, kOther));
  CHECK_FALSE(next_life(file, kModule, 8));
}

TEST_CASE("what was issued after the copy makes it worthless") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  const ImageRef image = image_of({{0x1000, 4, bytes({1, 2, 3, 4})}});
  const Kernel kernel(image);
  variables.note_launch(kernel);  // nothing to change yet
  variables.add(kModule, image);
  const proto::FileDescriptor file = broker.file();
  REQUIRE(next_life(file));
  CHECK(variables.copies(kBatch).pieces.empty());
  variables.note_launch(kernel);
  CHECK_FALSE(next_life(file));
  const SessionVariables::Copies copies = variables.copies(kBatch);
  REQUIRE(copies.pieces.size() == 1);
  SECTION("copied while idle") {
    REQUIRE(copy(variables, copies, bytes({9, 8, 7, 6})));
    const auto kept = next_life(file);
    REQUIRE(kept);
    CHECK(kept->variables.at(0).content == bytes({9, 8, 7, 6}));
    CHECK(variables.copies(kBatch).pieces.empty());
    variables.note_launch(kernel);
    CHECK_FALSE(next_life(file));
  }
  SECTION("the session goes on while it is copied") {
    variables.note_launch(kernel);
    CHECK_FALSE(copy(variables, copies, bytes({9, 8, 7, 6})));
    CHECK_FALSE(next_life(file));
  }
  SECTION("a module comes while it is copied") {
    variables.add(kOther, image_of({{0x3000, 4, {}}}, 2));
    CHECK_FALSE(copy(variables, copies, bytes({9, 8, 7, 6})));
    CHECK_FALSE(next_life(file));
  }
  SECTION("a module goes while it is copied") {
    variables.remove(kModule);
    CHECK_FALSE(copy(variables, copies, bytes({9, 8, 7, 6})));
  }
}

TEST_CASE("a module that comes later does not make the others' contents worthless") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  const ImageRef image = image_of({{0x1000, 4, {}}});
  variables.add(kModule, image);
  const proto::FileDescriptor file = broker.file();
  variables.note_launch(Kernel(image));
  REQUIRE(copy(variables, variables.copies(kBatch), bytes({5, 5, 5, 5})));
  variables.add(kOther, image_of({{0x3000, 2, bytes({1, 2})}}, 2));
  REQUIRE(next_life(file));
  CHECK(next_life(file)->variables.at(0).content == bytes({5, 5, 5, 5}));
  REQUIRE(next_life(file, kOther));
  CHECK(next_life(file, kOther)->variables.at(0).content == bytes({1, 2}));

  variables.remove(kModule);  // the other's contents stay where they are
  REQUIRE(next_life(file, kOther));
  CHECK(next_life(file, kOther)->variables.at(0).content == bytes({1, 2}));
  CHECK_FALSE(next_life(file, kModule));
}

TEST_CASE("variables up to the limit are kept, and not a byte more") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  variables.add(kModule, image_of({{0x100000, kMaxKeptBytes, {}}}));
  const proto::FileDescriptor file = broker.file();
  CHECK(next_life(file));
  variables.add(kOther, image_of({{0x3000, 1, {}}}, 2));
  CHECK(next_life(file));
  CHECK_FALSE(next_life(file, kOther));  // there is no room, and its owner is told so
  variables.remove(kModule);
  REQUIRE(copy(variables, variables.copies(kBatch), bytes({1})));
  CHECK(next_life(file, kOther));  // now there is
}

TEST_CASE("an image whose variables are not all known is not kept") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  variables.add(kModule, image_of({}));
  CHECK_FALSE(next_life(broker.file()));
}

TEST_CASE("a file that was being written when its executor died is worthless") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  variables.add(kModule, image_of({{0x1000, 4, {}}}));
  const proto::FileDescriptor file = broker.file();
  const auto mapping = proto::Mapping::map(file, 0, sizeof(KeptVariablesFile), proto::Access::read_write);
  reinterpret_cast<KeptVariablesFile*>(mapping.data())->kept_at.store(kNeverKept);
  CHECK_FALSE(next_life(file));
}

TEST_CASE("the next executor goes on with the file") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  variables.add(kModule, image_of({{0x1000, 4, bytes({1, 2, 3, 4})}}));
  const proto::FileDescriptor file = broker.file();
  Broker next_broker;
  SessionVariables next(1, *next_broker.link);
  REQUIRE(next.adopt(file));
  REQUIRE(next.kept(kModule, 7));
  const ImageRef image = image_of({{0x1000, 4, bytes({1, 2, 3, 4})}});
  next.restored(kModule, image);
  next.note_launch(Kernel(image));
  CHECK_FALSE(next_life(file));
  REQUIRE(copy(next, next.copies(kBatch), bytes({4, 3, 2, 1})));
  CHECK(next_life(file)->variables.at(0).content == bytes({4, 3, 2, 1}));
}

TEST_CASE("what stands as it was loaded anew is copied anew, and its client's look at it is known to the next executor") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  LoadedImage::Variable before{0x1000, 4, bytes({1, 2, 3, 4})}, now{0x1000, 4, bytes({5, 2, 3, 4})};
  before.loaded_hash = loaded_hash_of(before.content);
  now.loaded_hash = loaded_hash_of(now.content);
  variables.add(kModule, image_of({before, {0x2000, 4, bytes({1, 1, 1, 1})}}));
  variables.give_out(kModule, 0x2000, false);
  const proto::FileDescriptor file = broker.file();
  Broker next_broker;
  SessionVariables next(1, *next_broker.link);
  REQUIRE(next.adopt(file));
  const ImageRef image = image_of({now, {0x2000, 4, bytes({1, 1, 1, 1})}});
  next.restored(kModule, image);
  REQUIRE(next_life(file));  // for the modules behind it, and should this executor end
  CHECK(next_life(file)->variables.at(0).content == before.content);
  CHECK(next_life(file)->variables.at(0).loaded_hash == before.loaded_hash);
  next.note_write(0x2000, 1);
  const SessionVariables::Copies copies = next.copies(kBatch);
  REQUIRE(copies.pieces.size() == 2);
  CHECK(copies.pieces[0].address == 0x1000);
  REQUIRE(copy(next, copies, bytes({5, 2, 3, 4})));
  const auto kept = next_life(file);
  REQUIRE(kept);
  CHECK(kept->variables.at(0).loaded_hash == now.loaded_hash);
  CHECK_FALSE(kept->variables.at(0).is_looked_up);
  CHECK(kept->variables.at(1).is_looked_up);
}

TEST_CASE("a load that is asked for again replaces what an earlier executor noted of it") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  variables.add(kOther, image_of({{0x2000, 2, bytes({8, 9})}}));
  variables.add(kModule, image_of({{0x1000, 4, bytes({1, 2, 3, 4})}}, 1));
  const proto::FileDescriptor file = broker.file();
  Broker next_broker;
  SessionVariables next(1, *next_broker.link);
  REQUIRE(next.adopt(file));
  next.restored(kOther, image_of({{0x2000, 2, bytes({8, 9})}}));
  next.add(kModule, image_of({{0x5000, 4, bytes({5, 6, 7, 8})}}, 2));
  const auto kept = next_life(file);
  REQUIRE(kept);
  CHECK(kept->copy == 2);
  REQUIRE(kept->variables.size() == 1);
  CHECK(kept->variables[0].address == 0x5000);
  CHECK(kept->variables[0].content == bytes({5, 6, 7, 8}));
  REQUIRE(next_life(file, kOther));
  CHECK(next_life(file, kOther)->variables.at(0).content == bytes({8, 9}));
}

TEST_CASE("variables larger than a batch are kept by and by, and begun anew if they change") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  const ImageRef image = image_of({{0x100000, 8, {}}, {0x200000, 2 * kBatch + 5, {}}});
  const Kernel kernel(image, {0, 1});
  variables.add(kModule, image);
  const proto::FileDescriptor file = broker.file();
  variables.note_launch(kernel);
  std::vector<std::byte> content(kBatch);
  std::size_t copied = 0;
  const auto next_batch = [&](int value) {
    const SessionVariables::Copies copies = variables.copies(kBatch);
    REQUIRE_FALSE(copies.pieces.empty());
    std::fill(content.begin(), content.end(), static_cast<std::byte>(value));
    for (const auto& piece : copies.pieces) copied += piece.size_bytes;
    REQUIRE(variables.keep(copies, content));
    return copies.is_last;
  };
  CHECK_FALSE(next_batch(1));
  CHECK_FALSE(next_batch(2));
  CHECK_FALSE(next_life(file));
  SECTION("at rest") {
    CHECK(next_batch(3));
    CHECK(copied == 8 + 2 * kBatch + 5);
  }
  SECTION("written to meanwhile") {
    variables.note_launch(Kernel(image, {1}));
    CHECK_FALSE(next_batch(4));
    CHECK_FALSE(next_batch(4));
    CHECK(next_batch(3));
  }
  const auto kept = next_life(file);
  REQUIRE(kept);
  CHECK(kept->variables.at(0).content == std::vector<std::byte>(8, std::byte{1}));
  CHECK(kept->variables.at(1).content.back() == std::byte{3});
  CHECK(variables.are_kept());
}

TEST_CASE("contents that nobody has read at the load are kept once they were copied") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  LoadedImage::Variable unread{0x1000, 4, {}, false};
  variables.add(kModule, image_of({unread, {0x2000, 4, bytes({1, 2, 3, 4})}}));
  const proto::FileDescriptor file = broker.file();
  CHECK_FALSE(next_life(file));
  CHECK(variables.can_be_kept());
  const SessionVariables::Copies copies = variables.copies(kBatch);
  REQUIRE(copies.pieces.size() == 1);
  REQUIRE(copy(variables, copies, bytes({9, 9, 9, 9})));
  REQUIRE(next_life(file));
  CHECK(next_life(file)->variables.at(0).content == bytes({9, 9, 9, 9}));
  CHECK(next_life(file)->variables.at(1).content == bytes({1, 2, 3, 4}));
}

TEST_CASE("a file of another layout is worthless") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  variables.add(kModule, image_of({{0x1000, 4, {}}}));
  const proto::FileDescriptor file = broker.file();
  const auto mapping = proto::Mapping::map(file, 0, sizeof(KeptVariablesFile), proto::Access::read_write);
  reinterpret_cast<KeptVariablesFile*>(mapping.data())->layout = kKeptLayout + 1;
  CHECK_FALSE(next_life(file));
}

TEST_CASE("a file of another size is refused") {
  Broker broker;
  SessionVariables variables(1, *broker.link);
  proto::FileDescriptor file = proto::create_memory_file("test", 4096);
  REQUIRE(proto::seal(file, proto::Seal::size));
  CHECK_FALSE(variables.adopt(file));
}

}  // namespace mpsshim::broker
