// SPDX-License-Identifier: Apache-2.0
// fork() after cuInit: CUDA does not work in the child, and what it inherits must not hurt the parent or keep anything alive.
#include <signal.h>

#include <string>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

// The child that a test_client has left behind: killed at the end, whatever comes.
class LeftChild {
 public:
  explicit LeftChild(const std::string& answer) {
    REQUIRE(answer.rfind("ok ", 0) == 0);
    pid_ = static_cast<pid_t>(std::stol(answer.substr(3)));
  }
  ~LeftChild() { ::kill(pid_, SIGKILL); }
  LeftChild(const LeftChild&) = delete;
  LeftChild& operator=(const LeftChild&) = delete;
  [[nodiscard]] bool lives() const { return ::kill(pid_, 0) == 0; }

 private:
  pid_t pid_ = 0;
};

}  // namespace

TEST_CASE("a forked child is told that it is not initialised, and its parent goes on") {
  const BrokerFixture broker;
  Client client(broker);
  REQUIRE(client.ask("hold") == "ok");
  const std::string answer = client.ask("fork");
  INFO(broker.log());
  REQUIRE(answer == "ok 3 3 3");  // CUDA_ERROR_NOT_INITIALIZED
  REQUIRE(client.ask("check") == "ok");
  REQUIRE(client.ask("use") == "ok");
  REQUIRE(broker.wait_for_clients(1));
}

TEST_CASE("a child that has inherited the connection does not keep its dead parent's session") {
  const BrokerFixture broker;
  Client client(broker);
  REQUIRE(client.ask("hold") == "ok");
  const LeftChild child(client.ask("fork_and_stay"));
  REQUIRE(client.ask("use") == "ok");
  client.program().send(SIGKILL);
  REQUIRE(client.program().wait().signal == SIGKILL);
  const bool gone = broker.wait_for_clients(0, std::chrono::seconds(10));
  INFO(broker.log());
  REQUIRE(child.lives());
  REQUIRE(gone);
  REQUIRE(broker.run("vector_add_drv", std::vector<std::string>{}).ok());
}

TEST_CASE("a child that has inherited the connection does not keep the session of a parent that ended in order") {
  const BrokerFixture broker;
  std::string answer;
  {
    Client client(broker);
    answer = client.ask("fork_and_stay");
    client.program().send(SIGTERM);
    REQUIRE(client.program().wait().signal == SIGTERM);
  }
  const LeftChild child(answer);
  REQUIRE(broker.wait_for_clients(0, std::chrono::seconds(10)));
  REQUIRE(child.lives());
}
