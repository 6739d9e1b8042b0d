// SPDX-License-Identifier: Apache-2.0
// Memory of other interfaces: descriptors that are no memory, memory that shrinks, and addresses that the driver chose for somebody else.
#include <csignal>
#include <sstream>

#include "tests/hostile/scene.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

// On a GPU the executor takes descriptors of NVIDIA's driver alone: memory files, of which these are made, are refused as all others.

TEST_CASE("descriptors of every kind offered as memory, and memory made shorter") {
  if (on_gpu()) MPSSHIM_SKIP("memory files stand for other interfaces on the CPU driver alone");
  Scene scene;
  Client hostile = scene.hostile();
  CHECK(scene.attack(hostile, "descriptors_as_memory") == "ok");
  scene.end(hostile);
  scene.require_all_back("descriptors offered as memory");
}

TEST_CASE("external memory is its session's alone, and ends with it") {
  if (on_gpu()) MPSSHIM_SKIP("memory files stand for other interfaces on the CPU driver alone");
  Scene scene;
  Client hostile = scene.hostile();
  const std::string answer = scene.attack(hostile, "external");
  REQUIRE(answer.starts_with("ok "));
  Client other = scene.hostile();
  CHECK(scene.attack(other, "reach " + answer.substr(3)) == "ok");
  scene.end(other);
  scene.end(hostile);  // killed, with its buffer
  scene.require_all_back("external memory");
}

TEST_CASE("one session has so much external memory, and no more") {
  if (on_gpu()) MPSSHIM_SKIP("memory files stand for other interfaces on the CPU driver alone");
  Scene scene;
  Client hostile = scene.hostile();
  std::istringstream answer(scene.attack(hostile, "externals"));
  INFO(answer.str());
  std::string ok;
  long offered = 0, imported = 0, mapped = 0;
  answer >> ok >> offered >> imported >> mapped;
  CHECK(ok == "ok");
  CHECK(offered == 64);
  CHECK(imported > 16);
  CHECK(imported < 1024);  // those that were offered first have been imported as well
  CHECK(mapped == 1024);
  scene.require_newcomer_served();
  scene.end(hostile);
  scene.require_all_back("much external memory");
}
