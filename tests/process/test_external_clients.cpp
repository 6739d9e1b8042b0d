// SPDX-License-Identifier: Apache-2.0
// Clients with memory of other interfaces, which no other executor can have: they stay where they are, and are told when their executor has gone.
#include <csignal>

#include "tests/process/client.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

bool starts_with_ok(const std::string& answer) { return answer.starts_with("ok "); }

pid_t executor_of(const BrokerFixture& broker) {
  const std::vector<pid_t> servers = broker.servers();
  REQUIRE(servers.size() == 1);
  return servers.front();
}

}  // namespace

TEST_CASE("a client with external memory is told when its executor has gone, others go on") {
  if (on_gpu()) MPSSHIM_SKIP("memory files stand for other interfaces on the CPU driver alone");
  const BrokerFixture broker;
  Client holder(broker, "memory_client"), idle(broker, "memory_client");
  REQUIRE(idle.ask("hold") == "ok");
  REQUIRE(starts_with_ok(holder.ask("import")));
  REQUIRE(holder.ask("seen") == "ok");
  const pid_t executor = executor_of(broker);
  REQUIRE(kill(executor, SIGKILL) == 0);
  REQUIRE(eventually(std::chrono::seconds(10), [&] {
    const std::vector<pid_t> servers = broker.servers();
    return servers.size() == 1 && servers.front() != executor;
  }));
  const std::string told = holder.ask("seen");
  INFO(told << "\n" << holder.program().errors());
  CHECK(is_mps_error(told));
  CHECK(holder.program().errors().find("could not be made again") != std::string::npos);
  CHECK(idle.ask("check") == "ok");
  CHECK(idle.ask("launch") == "ok");
  Client next(broker, "memory_client");
  CHECK(starts_with_ok(next.ask("import")));
  CHECK(next.ask("seen") == "ok");
}

TEST_CASE("external memory stands in the way of a restart, unless forced") {
  if (on_gpu()) MPSSHIM_SKIP("memory files stand for other interfaces on the CPU driver alone");
  BrokerFixture broker;
  Client holder(broker, "memory_client");
  REQUIRE(starts_with_ok(holder.ask("import")));
  const Outcome refused = broker.ctl({"restart", "-t", "1", "executors"});
  INFO(refused.explain());
  CHECK_FALSE(refused.ok());
  CHECK(holder.ask("seen") == "ok");
  CHECK(broker.ctl({"restart", "-f", "-t", "1", "executors"}).ok());
  CHECK(is_mps_error(holder.ask("seen")));
}
