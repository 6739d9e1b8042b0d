// SPDX-License-Identifier: Apache-2.0
// What the variables of a bystander's modules hold when its executor ends, by a neighbour's fault or as planned: what they held before, or its
// client is told; however short its rest was. docs/recovery.md, "Kept variables".
#include <chrono>
#include <string>
#include <thread>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

using Milliseconds = std::chrono::milliseconds;

void require_fault(Client& guilty, const BrokerFixture& broker) {
  const std::string answer = guilty.ask("fault");
  INFO(answer << "\n" << broker.log());
  // Where another one had only just ended nobody is shown guilty.
  REQUIRE((answer.rfind("700 CUDA_ERROR_ILLEGAL_ADDRESS", 0) == 0 || is_mps_error(answer)));
}

void require_answer(Client& client, const std::string& command, const std::string& expected, const BrokerFixture& broker) {
  const std::string answer = client.ask(command);
  INFO(command << ": " << answer << "\n" << client.program().errors() << broker.log());
  REQUIRE(answer == expected);
}

void require_restart(const BrokerFixture& broker, const std::vector<std::string>& arguments) {
  const Outcome outcome = broker.ctl(arguments);
  INFO(outcome.explain() << broker.log());
  REQUIRE(outcome.ok());
}

// The fault comes so long after `owner` has begun to work, whenever the answer is read. What the work answers.
std::string work_beside_fault(Client& owner, const std::string& work, Milliseconds until_fault, Client& guilty, const BrokerFixture& broker) {
  const auto fault = std::chrono::steady_clock::now() + until_fault;
  owner.begin(work);
  std::this_thread::sleep_until(fault);
  require_fault(guilty, broker);
  return owner.answer();
}

// What ends within 2 ms before a fault is reported counts as not ended (docs/recovery.md, "Guilt"): as long as that was the client may be told.
constexpr Milliseconds kLate{5};
constexpr Milliseconds kWork{13};  // what takes 12 ms, with its way to the client

}  // namespace

TEST_CASE("kernels that touch no variable were at work until just before a fault: what others wrote is there") {
  const BrokerFixture broker;
  for (const int idle_ms : {0, 1, 2, 3, 5, 8, 15}) {
    for (const std::string work : {"churn 12", "flood 12"}) {
      Client owner(broker, "variables_client"), guilty(broker);
      require_answer(owner, "load 0 0", "ok", broker);
      require_answer(owner, "count", "ok 6", broker);
      std::this_thread::sleep_for(Milliseconds(20));  // it is copied, and need not be again
      const std::string worked = work_beside_fault(owner, work, kWork + Milliseconds(idle_ms), guilty, broker);
      const std::string answer = worked == "ok" ? owner.ask("count") : worked;
      INFO(work << ", " << idle_ms << " ms: " << answer << "\n" << owner.program().errors() << broker.log());
      REQUIRE((answer == "ok 7" || (is_mps_error(answer) && Milliseconds(idle_ms) < kLate)));
    }
  }
}

TEST_CASE("kernels that write to a variable until just before a fault: it is right, or its owner is told; after a short rest it is right") {
  const BrokerFixture broker;
  for (const int idle_ms : {0, 1, 2, 3, 5, 8, 20}) {
    Client owner(broker, "variables_client"), guilty(broker);
    require_answer(owner, "load 0 0", "ok", broker);
    const std::string counted = work_beside_fault(owner, "count_for 12 200", kWork + Milliseconds(idle_ms), guilty, broker);
    const unsigned last = counted.rfind("ok ", 0) == 0 ? static_cast<unsigned>(std::stoul(counted.substr(3))) : 0;
    const std::string answer = last != 0 ? owner.ask("count") : counted;
    INFO(idle_ms << " ms: " << answer << " behind " << last << "\n" << owner.program().errors() << broker.log());
    if (answer != "ok " + std::to_string(last + 1)) {
      REQUIRE(is_mps_error(answer));
      REQUIRE(idle_ms < 20);
    }
  }
}

// The kernel's code does not name the variable.
TEST_CASE("a variable whose address is elsewhere: what is written by it is right, or its owner is told") {
  const BrokerFixture broker;
  for (const std::string first : {"leave", "given"}) {
    for (const int idle_ms : {0, 2, 20}) {
      Client owner(broker, "variables_client"), guilty(broker), guilty_again(broker);
      require_answer(owner, "load 0 0", "ok", broker);
      unsigned last = 5;
      require_answer(owner, first, first == "leave" ? "ok" : "ok " + std::to_string(++last), broker);
      std::this_thread::sleep_for(Milliseconds(50));
      require_fault(guilty, broker);  // the next executor has to know as well
      for (int i = 0; i < 3; ++i) require_answer(owner, "through", "ok " + std::to_string(++last), broker);
      std::this_thread::sleep_for(Milliseconds(idle_ms));
      require_fault(guilty_again, broker);
      const std::string answer = owner.ask("through");
      INFO(first << ", " << idle_ms << " ms: " << answer << "\n" << owner.program().errors() << broker.log());
      if (answer != "ok " + std::to_string(last + 1)) {
        REQUIRE(is_mps_error(answer));
        REQUIRE(idle_ms < 20);
      }
    }
  }
}

TEST_CASE("large variables, and more of them than are read at the load, come back") {
  const BrokerFixture broker;
  Client owner(broker, "variables_client"), guilty(broker);
  require_answer(owner, "load 40 100", "ok", broker);
  require_answer(owner, "fill", "ok", broker);
  require_answer(owner, "count", "ok 6", broker);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  require_fault(guilty, broker);
  require_answer(owner, "check", "ok", broker);
  require_answer(owner, "count", "ok 7", broker);
}

TEST_CASE("restarts: who has variables rests, and goes on with what they hold") {
  const BrokerFixture broker;
  Client owner(broker, "variables_client"), other(broker, "variables_client");
  require_answer(owner, "load 3 100", "ok", broker);
  require_answer(other, "load 0 0", "ok", broker);
  unsigned last = 5;
  for (const std::vector<std::string>& restart :
       {std::vector<std::string>{"restart", "executors"}, std::vector<std::string>{"restart"}, std::vector<std::string>{"restart"}}) {
    require_answer(owner, "fill", "ok", broker);
    ++last;
    for (Client* client : {&owner, &other}) require_answer(*client, "count", "ok " + std::to_string(last), broker);
    require_restart(broker, restart);
    require_answer(owner, "check", "ok", broker);
    ++last;
    for (Client* client : {&owner, &other}) require_answer(*client, "count", "ok " + std::to_string(last), broker);
  }
  // A newcomer does not get a copy that somebody is to have again.
  Client newcomer(broker, "variables_client");
  require_answer(newcomer, "load 0 0", "ok", broker);
  require_answer(newcomer, "count", "ok 6", broker);
  Client guilty(broker);
  std::this_thread::sleep_for(Milliseconds(50));
  require_fault(guilty, broker);
  require_answer(owner, "check", "ok", broker);
  require_answer(other, "count", "ok " + std::to_string(last + 1), broker);
}

TEST_CASE("restarts: who counts up all the while loses no count") {
  const BrokerFixture broker;
  Client owner(broker, "variables_client");
  require_answer(owner, "load 0 0", "ok", broker);
  for (const std::vector<std::string>& restart : {std::vector<std::string>{"restart", "executors"}, std::vector<std::string>{"restart"}}) {
    owner.begin("count_for 1500 100");
    std::this_thread::sleep_for(Milliseconds(100));
    require_restart(broker, restart);
    const std::string answer = owner.answer();
    INFO(answer << "\n" << owner.program().errors() << broker.log());
    REQUIRE(answer.rfind("ok ", 0) == 0);
  }
}
