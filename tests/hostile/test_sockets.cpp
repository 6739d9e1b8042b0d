// SPDX-License-Identifier: Apache-2.0
// What a client may do with its connection, with many of them, and with what a forked child inherits.
#include <csignal>
#include <sstream>

#include "tests/hostile/scene.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

void attack_and_end(const std::string& command, const std::vector<std::string>& arguments = {}) {
  Scene scene(arguments);
  Client hostile = scene.hostile();
  (void)scene.attack(hostile, command);
  scene.end(hostile);
  scene.require_all_back(command);
}

long number_in(const std::string& answer, int which) {
  std::istringstream words(answer);
  std::string ok;
  long number = -1;
  words >> ok;
  for (int i = 0; i < which; ++i) words >> number;
  return number;
}

}  // namespace

TEST_CASE("requests without end, no answer read") { attack_and_end("flood 2000"); }

TEST_CASE("half messages, wrong ones and long ones end that connection alone") { attack_and_end("halves"); }

TEST_CASE("too many descriptors in a message, and the wrong one") { attack_and_end("descriptors"); }

TEST_CASE("descriptors whose closing takes as long as their sender likes hold nobody up") {
  const std::string way = GENERATE("hello", "garbage", "unread", "refused", "commands");
  Scene scene;
  Client hostile = scene.hostile();
  (void)scene.attack(hostile, "linger " + way);
  scene.require_unhurt("sockets linger");
  scene.require_newcomer_served();
  scene.end(hostile);
  scene.require_all_back("lingering, by " + way);
}

TEST_CASE("an image's file that somebody writes to for ever holds nobody up") {
  Scene scene;
  Client hostile = scene.hostile();
  const std::string answer = scene.attack(hostile, "stuck_image");
  if (answer == "ok 0") MPSSHIM_SKIP("userfaultfd is not to be had");
  scene.require_unhurt("an image is being written");
  scene.require_newcomer_served();
  scene.end(hostile);
  scene.require_all_back("an image that is written for ever");
}

TEST_CASE("sessions opened and left without end") { attack_and_end("churn 2000"); }

TEST_CASE("one process gets so many connections, and no more") {
  Scene scene;
  Client hostile = scene.hostile();
  const std::string answer = scene.attack(hostile, "connect 2000");
  INFO(answer);
  CHECK(number_in(answer, 1) >= 1);
  CHECK(number_in(answer, 1) <= 16);
  // Others still come in.
  scene.require_newcomer_served();
  scene.end(hostile);
  scene.require_all_back("connections");
}

TEST_CASE("one process gets so many sessions, and no more") {
  Scene scene;
  Client hostile = scene.hostile();
  const std::string answer = scene.attack(hostile, "sessions 600");
  INFO(answer);
  CHECK(number_in(answer, 1) == 4);
  scene.end(hostile);
  scene.require_all_back("sessions");
}

TEST_CASE("connections that say nothing take nobody's place") {
  Scene scene;
  Client hostile = scene.hostile();
  const std::string answer = scene.attack(hostile, "silent 500");
  INFO(answer);
  CHECK(number_in(answer, 1) >= 400);  // those beyond a process's share are closed at once
  scene.end(hostile);
  scene.require_all_back("silence");
}

TEST_CASE("connections for commands that say nothing, or nonsense") {
  Scene scene;
  Client hostile = scene.hostile();
  (void)scene.attack(hostile, "commands 300");
  CHECK(scene.broker().ctl({"get_server_list"}).ok());
  scene.end(hostile);
  scene.require_all_back("commands");
}

TEST_CASE("a child that inherits its parent's session keeps nothing of it alive") {
  Scene scene;
  Client parent = scene.hostile();
  const std::string answer = scene.attack(parent, "heir");
  const auto child = static_cast<pid_t>(number_in(answer, 1));
  REQUIRE(child > 0);
  REQUIRE(kill(parent.program().pid(), SIGKILL) == 0);  // it alone; its child lives on
  const bool ended = scene.broker().wait_for_clients(1);
  const bool lives = kill(child, 0) == 0;
  scene.require_unhurt("the heir lives");
  scene.require_all_back("the heir still has its parent's socket, doorbells and files");
  kill(child, SIGKILL);
  CHECK(ended);
  CHECK(lives);
}
