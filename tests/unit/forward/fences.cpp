// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/fences.hpp"

#include "tests/support/catch.hpp"

using namespace mpsshim;

TEST_CASE("fences: values go on in the next epoch's words, at the same address") {
  interposer::FenceMemory fences;
  const auto first = proto::create_memory_file("first epoch", proto::kFenceSegmentBytes);
  const auto second = proto::create_memory_file("second epoch", proto::kFenceSegmentBytes);
  REQUIRE(fences.map(first));
  auto& word = const_cast<proto::FenceWord&>(fences.word(5));
  word.value.store(41);
  CHECK(fences.reached(5, 41));
  CHECK_FALSE(fences.reached(5, 42));
  REQUIRE(fences.map(second));
  CHECK(&fences.word(5) == &word);
  CHECK(fences.reached(5, 41));
  // What the GPU of the next executor writes is seen; the first segment is no longer looked at.
  const proto::Mapping gpu = proto::Mapping::map(second, 0, proto::kFenceSegmentBytes, proto::Access::read_write);
  reinterpret_cast<proto::FenceWord*>(gpu.data())[5].value.store(42);
  CHECK(fences.reached(5, 42));
}
