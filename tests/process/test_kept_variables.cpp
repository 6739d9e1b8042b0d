// SPDX-License-Identifier: Apache-2.0
// What the variables of a bystander's modules hold when its executor ends, by a neighbour's fault or as planned: what they held before, or its
// client is told; however short its rest was. docs/recovery.md, "Kept variables".
#include <signal.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

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

struct Rest {
  std::string worked;    // what the work has answered, without the time at its end
  Milliseconds idle{0};  // from there until somebody was told to make a fault
};

// It comes so long after `owner` has begun to work, whenever its answer is read.
Rest work_beside_end(Client& owner, const std::string& work, Milliseconds until_end, bool by_fault, Client& guilty, const BrokerFixture& broker) {
  const pid_t server = broker.servers().at(0);
  const auto end = std::chrono::steady_clock::now() + until_end;
  owner.begin(work);
  std::this_thread::sleep_until(end);
  const auto told = std::chrono::steady_clock::now();
  if (by_fault)
    require_fault(guilty, broker);
  else
    REQUIRE(::kill(server, SIGKILL) == 0);
  Rest rest;
  rest.worked = owner.answer();
  if (rest.worked.rfind("ok ", 0) != 0) return rest;
  const std::size_t time = rest.worked.rfind(' ');
  const std::chrono::nanoseconds ended(std::stoll(rest.worked.substr(time + 1)));
  rest.idle = std::chrono::duration_cast<Milliseconds>(told.time_since_epoch() - ended);
  rest.worked.resize(time);
  return rest;
}

// What ends within 2 ms before a fault is reported counts as not ended (docs/recovery.md, "Guilt"): as long as that was the client may be told.
// Before a kill it is until the executor has looked at what ended, which takes a busy machine as long.
constexpr Milliseconds kLate{3};
constexpr Milliseconds kPause{15};
constexpr Milliseconds kWork{12};

}  // namespace

TEST_CASE("kernels that touch no variable were at work until just before the end: what others wrote is there") {
  const bool by_fault = GENERATE(true, false);
  for (const int idle_ms : {0, 1, 2, 3, 4, 5, 8, 15}) {
    const BrokerFixture broker;
    Client owner(broker, "variables_client"), guilty(broker);
    require_answer(owner, "load 0 0", "ok", broker);
    // What was counted is copied in the pause, and need not be again.
    const Rest rest = work_beside_end(owner, "churn 12 15000", kPause + kWork + Milliseconds(idle_ms), by_fault, guilty, broker);
    const std::string answer = rest.worked == "ok" ? owner.ask("count") : rest.worked;
    INFO((by_fault ? "fault, " : "kill, ") << rest.idle.count() << " ms of rest: " << answer << "\n" << owner.program().errors() << broker.log());
    REQUIRE((answer == "ok 7" || (is_mps_error(answer) && rest.idle < kLate)));
  }
}

TEST_CASE("kernels that write to a variable until just before the end: it is right, or its owner is told, after a short rest it is right") {
  const bool by_fault = GENERATE(true, false);
  for (const int idle_ms : {0, 1, 2, 3, 4, 5, 8, 20}) {
    const BrokerFixture broker;
    Client owner(broker, "variables_client"), guilty(broker);
    require_answer(owner, "load 0 0", "ok", broker);
    const Rest rest = work_beside_end(owner, "count_for 12 200", kWork + Milliseconds(idle_ms), by_fault, guilty, broker);
    const bool has_worked = rest.worked.rfind("ok ", 0) == 0;
    const std::string expected = has_worked ? "ok " + std::to_string(std::stoul(rest.worked.substr(3)) + 1) : "";
    const std::string answer = has_worked ? owner.ask("count") : rest.worked;
    INFO((by_fault ? "fault, " : "kill, ") << rest.idle.count() << " ms of rest: " << answer << ", not " << expected << "\n"
                                           << owner.program().errors() << broker.log());
    REQUIRE((answer == expected || (is_mps_error(answer) && rest.idle < Milliseconds(15))));
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
  require_answer(owner, "load 12 100", "ok", broker);
  require_answer(owner, "fill", "ok", broker);
  require_answer(owner, "count", "ok 6", broker);
  std::this_thread::sleep_for(std::chrono::seconds(4));  // a few hundred milliseconds on a machine with nothing else to do
  require_fault(guilty, broker);
  require_answer(owner, "check", "ok", broker);
  require_answer(owner, "count", "ok 7", broker);
}

// In a linked image, as NCCL's is, such a variable holds addresses of code.
TEST_CASE("a table of functions in a variable leads where it led, or its owner is told") {
  const bool by_fault = GENERATE(true, false);
  const BrokerFixture broker;
  Client another(broker, "variables_client"), owner(broker, "variables_client"), guilty(broker);
  require_answer(another, "load_table", "ok", broker);  // in front of it in the load log, and gone behind it
  require_answer(owner, "load_table", "ok", broker);
  require_answer(owner, "call 0", "ok 101", broker);
  require_answer(owner, "call 1", "ok 202", broker);
  another.program().send(SIGKILL);
  another.program().wait();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  if (by_fault)
    require_fault(guilty, broker);
  else
    REQUIRE(::kill(broker.servers().at(0), SIGKILL) == 0);
  const std::string answer = owner.ask("call 1");
  INFO(answer << "\n" << owner.program().errors() << broker.log());
  REQUIRE((answer == "ok 202" || (on_gpu() && is_mps_error(answer))));
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
    REQUIRE(answer.rfind("ok ", 0) == 0);  // and each count followed the one before
  }
}

// Where functions are, and what variables say of it, is the same in the next life only where code is loaded with its module.
TEST_CASE("executors load modules whole, whatever the broker's environment says") {
  BrokerOptions options;
  options.environment = {{"CUDA_MODULE_LOADING", "LAZY"}};
  const BrokerFixture broker(options);
  const Client client(broker);
  std::ifstream file("/proc/" + std::to_string(broker.servers().at(0)) + "/environ");
  std::string entry;
  std::vector<std::string> found;
  while (std::getline(file, entry, '\0')) {
    if (entry.starts_with("CUDA_MODULE_LOADING=")) found.push_back(entry);
  }
  CHECK(found == std::vector<std::string>{"CUDA_MODULE_LOADING=EAGER"});
}
