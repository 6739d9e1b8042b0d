// SPDX-License-Identifier: Apache-2.0
// What a client may do to the memory it shares with the broker, and to its ring: it hurts itself.
#include <sstream>
#include <string>

#include "tests/hostile/scene.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

TEST_CASE("a client that speaks the raw protocol and behaves is served") {
  Scene scene;
  Client client = scene.hostile();
  CHECK(scene.attack(client, "work") == "ok");
  scene.end(client);
  scene.require_all_back("work");
}

TEST_CASE("a client that scribbles over its shared pages hurts nobody else") {
  const std::string pages = GENERATE("header", "waiters", "replies", "ring", "fences", "all");
  Scene scene;
  Client hostile = scene.hostile();
  (void)scene.attack(hostile, "scribble " + pages + " 1500");
  scene.end(hostile);
  scene.require_all_back("scribbling over " + pages);
}

TEST_CASE("a client that forges fences, waiters, positions and states hurts nobody else") {
  Scene scene;
  Client hostile = scene.hostile();
  (void)scene.attack(hostile, "forge 2000");
  scene.end(hostile);
  scene.require_all_back("forging");
}

TEST_CASE("shared files cannot be resized, and holes in them hurt nobody else") {
  Scene scene;
  Client hostile = scene.hostile();
  const std::string answer = scene.attack(hostile, "punch");
  CHECK(answer != "ok 0");  // holes could be made: it is not the kernel alone that protects
  scene.end(hostile);
  scene.require_all_back("holes");
}

TEST_CASE("a client that unmaps and closes everything shared hurts nobody else") {
  Scene scene;
  Client hostile = scene.hostile();
  (void)scene.attack(hostile, "unmap");
  scene.require_unhurt("its pages are gone, it lives on");
  scene.end(hostile);
  scene.require_all_back("unmapping");
}

TEST_CASE("a doorbell that nobody can write to without waiting hurts nobody else") {
  Scene scene;
  Client hostile = scene.hostile();
  (void)scene.attack(hostile, "jam_doorbells");
  scene.require_unhurt("a thread waits at a jammed doorbell");
  scene.require_newcomer_served();
  scene.end(hostile);
  scene.require_all_back("a jammed doorbell");
}

TEST_CASE("random records end their session and nothing else") {
  Scene scene;
  Client hostile = scene.hostile();
  const std::string answer = scene.attack(hostile, "random_records 2000");
  INFO(answer);
  std::istringstream words(answer);
  std::string ok;
  int sessions = 0;
  words >> ok >> sessions;
  CHECK(sessions > 1);  // those before the last were ended for it
  scene.end(hostile);
  scene.require_all_back("random records");
}

TEST_CASE("a client that never reads its answers hurts nobody else") {
  Scene scene;
  Client hostile = scene.hostile();
  (void)scene.attack(hostile, "deaf 1500");
  scene.end(hostile);
  scene.require_all_back("calls without a reader");
}
