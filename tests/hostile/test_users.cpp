// SPDX-License-Identifier: Apache-2.0
// Whose clients are served: the broker's own user's, or everybody's where it was started so (NVIDIA MPS manual, "-multiuser-server").
#include <sys/stat.h>
#include <unistd.h>

#include "tests/hostile/scene.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr const char* kNobody = "65534";

// The temporary folder and the sockets let everybody in: it is the broker that decides.
void open_to_all(const BrokerFixture& broker, bool sockets) {
  REQUIRE(chmod(broker.pipe_dir().parent_path().c_str(), 0755) == 0);
  REQUIRE(chmod(broker.pipe_dir().c_str(), 0755) == 0);
  if (sockets) REQUIRE(chmod((broker.pipe_dir() / "mpsshim.sock").c_str(), 0666) == 0);
}

}  // namespace

TEST_CASE("a client of another user is refused") {
  if (geteuid() != 0) MPSSHIM_SKIP("only root can become another user");
  BrokerFixture broker;
  open_to_all(broker, true);
  Client other = Client::begin(broker, "hostile_client");
  REQUIRE(other.answer() == "ok attached");
  const std::string answer = other.ask(std::string("as_user ") + kNobody);
  INFO(answer << "\n" << broker.log());
  CHECK(answer == "ok 805 0");  // CUDA_ERROR_MPS_CONNECTION_FAILED, and no facts
  CHECK(broker.log().find("of uid 65534 is refused") != std::string::npos);
  CHECK(broker.clients().empty());
}

TEST_CASE("a broker for all users serves a client of another one, and takes commands from its own and root alone") {
  if (geteuid() != 0) MPSSHIM_SKIP("only root can become another user");
  BrokerOptions options;
  options.arguments = {"--multiuser-server"};
  BrokerFixture broker(options);
  open_to_all(broker, false);
  Client other = Client::begin(broker, "hostile_client");
  REQUIRE(other.answer() == "ok attached");
  const std::string answer = other.ask(std::string("as_user ") + kNobody);
  INFO(answer << "\n" << broker.log());
  CHECK(answer == "ok 0 1");
  CHECK(other.ask("work") == "ok");
  CHECK(other.ask("command get_server_list") == "ok refused");
  CHECK(broker.clients().size() == 1);
}
