// SPDX-License-Identifier: Apache-2.0
// A kernel that never ends keeps calls that wait for every kernel from being made. Whoever needs one is served by a second executor of the
// same GPU, with all it holds; the others stay where they are, and each executor's end is its own.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

// What is promised is promised for a GPU; a busy machine interprets kernels in its own time.
Milliseconds served_within() { return on_gpu() ? std::chrono::seconds(3) : std::chrono::seconds(20); }

BrokerOptions with(std::vector<std::string> arguments) {
  BrokerOptions options;
  options.arguments = std::move(arguments);
  return options;
}

// Runs a kernel that never ends, in the first executor.
void spin(Client& client) { REQUIRE(client.ask("spin") == "ok"); }

void require_ok(Client& client, const std::string& command, const BrokerFixture& broker) {
  const std::string answer = client.ask(command);
  const bool is_ok = answer.rfind("ok", 0) == 0;
  INFO(command << ": " << answer << "\n" << client.program().errors() << broker.log() << (is_ok ? "" : broker.threads()));
  REQUIRE(is_ok);
}

void require_newcomer_is_served(const BrokerFixture& broker) {
  const Outcome newcomer = broker.run("vector_add_drv", std::vector<std::string>{});
  INFO(newcomer.explain() << broker.log());
  REQUIRE(newcomer.ok());
  WARN("served after " << std::chrono::duration_cast<Milliseconds>(newcomer.took).count() << " ms");
  REQUIRE(newcomer.took < served_within());
}

bool has_servers(const BrokerFixture& broker, std::size_t count) {
  return eventually(std::chrono::seconds(10), [&] { return broker.servers().size() == count; });
}

// A client whose executable is like no other's: what it does is its own program's doing.
Client start_other(const BrokerFixture& broker, const TemporaryFolder& folder, const std::string& content) {
  const std::filesystem::path program = folder.path() / content;
  std::filesystem::copy_file(built_program("test_client"), program, std::filesystem::copy_options::skip_existing);
  if (std::filesystem::file_size(program) == std::filesystem::file_size(built_program("test_client"))) {
    std::ofstream(program, std::ios::app) << content;
  }
  return Client::begin(broker, program);  // where it is served beside a kernel of its like, it waits for that from the beginning
}

}  // namespace

TEST_CASE("newcomers are served beside a kernel that never ends, a client that is there stays correct") {
  const BrokerFixture broker;
  Client endless(broker), there(broker);
  REQUIRE(there.ask("hold") == "ok");
  spin(endless);
  require_newcomer_is_served(broker);  // it has to move
  REQUIRE(broker.servers().size() == 2);
  require_newcomer_is_served(broker);  // it is placed there at once
  Client second(broker);
  second.begin("storm 3000");
  const std::string latency = there.ask("latency 2000");
  INFO(latency << "\n" << broker.log());
  std::istringstream words(latency);
  std::string word;
  double median_us = 0, p99_us = 0;
  words >> word >> median_us >> p99_us;
  REQUIRE(word == "ok");
  WARN("launch and wait beside a busy second executor: median " << median_us << " us, p99 " << p99_us << " us");
  if (on_gpu()) REQUIRE(p99_us <= 5'000);
  REQUIRE(second.answer().rfind("ok ", 0) == 0);
  require_ok(there, "check", broker);
  require_ok(there, "use", broker);
}

TEST_CASE("a client that starves moves with all it holds") {
  const BrokerFixture broker;
  Client endless(broker), moving(broker);
  REQUIRE(moving.ask("hold") == "ok");
  require_ok(moving, "pin", broker);
  spin(endless);
  require_ok(moving, "global", broker);
  REQUIRE(moving.ask("count") == "ok 6");
  require_ok(moving, "check", broker);
  require_ok(moving, "use", broker);
  require_ok(moving, "pin", broker);
  REQUIRE(moving.ask("count") == "ok 7");
  REQUIRE(broker.servers().size() == 2);
  // Its memory can be given back and taken again.
  require_ok(moving, "storm 200", broker);
}

TEST_CASE("a linker that is not complete moves with its client") {
  const BrokerFixture broker;
  Client endless(broker), linking(broker, "modules_client");
  require_ok(linking, "link", broker);
  spin(endless);
  require_ok(linking, "plain", broker);
  REQUIRE(broker.servers().size() == 2);
  require_ok(linking, "linked", broker);
  require_ok(linking, "unlink", broker);
}

TEST_CASE("the first executor's end does not reach the second, nor the second's the first") {
  const BrokerFixture broker;
  Client endless(broker), there(broker), moving(broker);
  REQUIRE(there.ask("hold") == "ok");
  REQUIRE(moving.ask("hold") == "ok");
  spin(endless);
  require_ok(moving, "image other_ptx", broker);
  const std::vector<pid_t> servers = broker.servers();
  REQUIRE(servers.size() == 2);

  moving.begin("storm 1500");
  REQUIRE(::kill(servers[0], SIGKILL) == 0);
  REQUIRE(is_mps_error(endless.ask("storm 50")));
  const std::string storm = moving.answer();
  INFO(storm << broker.log());
  REQUIRE(storm.rfind("ok ", 0) == 0);
  require_ok(there, "check", broker);
  require_ok(there, "use", broker);
  require_ok(moving, "check", broker);

  there.begin("storm 1500");
  REQUIRE(::kill(servers[1], SIGKILL) == 0);
  require_ok(moving, "check", broker);
  require_ok(moving, "use", broker);
  const std::string other = there.answer();
  INFO(other);
  REQUIRE(other.rfind("ok ", 0) == 0);
}

TEST_CASE("a fault in the second executor is felt there alone") {
  const BrokerFixture broker;
  Client endless(broker), there(broker), moving(broker);
  REQUIRE(there.ask("hold") == "ok");
  REQUIRE(moving.ask("hold") == "ok");
  spin(endless);
  require_ok(moving, "image other_ptx", broker);
  Client guilty(broker);
  const pid_t first = broker.servers().at(0);
  const std::string fault = guilty.ask("fault");
  INFO(fault << broker.log());
  REQUIRE(fault.rfind("700 CUDA_ERROR_ILLEGAL_ADDRESS", 0) == 0);
  require_ok(moving, "check", broker);
  require_ok(moving, "use", broker);
  require_ok(there, "use", broker);
  REQUIRE(broker.servers().at(0) == first);
}

TEST_CASE("the second executor ends after its last client, and nothing stays of it") {
  const BrokerFixture broker(with({"--idle-executor-ms", "300"}));
  Client endless(broker);
  const Resources before = broker.settled_resources();
  {
    spin(endless);
    Client moving(broker);
    require_ok(moving, "hold", broker);
    require_ok(moving, "image other_ptx", broker);
    REQUIRE(broker.servers().size() == 2);
  }
  REQUIRE(has_servers(broker, 1));
  INFO(broker.log());
  REQUIRE(eventually(std::chrono::seconds(10), [&] { return broker.resources().processes == before.processes; }));
  require_newcomer_is_served(broker);
}

TEST_CASE("after the kernel that never ended is gone newcomers are in the first executor again") {
  const BrokerFixture broker(with({"--idle-executor-ms", "300"}));
  Client there(broker);
  REQUIRE(there.ask("hold") == "ok");
  {
    Client endless(broker);
    spin(endless);
    require_newcomer_is_served(broker);
    endless.program().send(SIGKILL);
    REQUIRE(endless.program().wait().signal == SIGKILL);
  }
  REQUIRE(has_servers(broker, 1));
  require_newcomer_is_served(broker);
  REQUIRE(has_servers(broker, 1));
  require_ok(there, "check", broker);
}

TEST_CASE("with one executor the call that waits is refused at last, and the client goes on") {
  const BrokerFixture broker(with({"--executors", "1", "--patience-s", "3"}));
  Client endless(broker), waiting(broker);
  REQUIRE(waiting.ask("hold") == "ok");
  spin(endless);
  const std::string answer = waiting.ask("global");
  INFO(answer << broker.log());
  REQUIRE(is_mps_error(answer));
  REQUIRE(broker.servers().size() == 1);
  require_ok(waiting, "check", broker);
  require_ok(waiting, "use", broker);
}

// What kernels wrote into its variables comes with it.
TEST_CASE("a client whose modules have variables moves with what they hold") {
  const BrokerFixture broker;
  Client other_owner(broker), owner(broker), endless(broker);
  for (Client* client : {&other_owner, &owner}) REQUIRE(client->ask("global") == "ok");
  REQUIRE(other_owner.ask("count") == "ok 6");
  REQUIRE(owner.ask("count") == "ok 6");
  REQUIRE(owner.ask("count") == "ok 7");
  spin(endless);
  require_ok(owner, "image other_ptx", broker);
  REQUIRE(broker.servers().size() == 2);
  REQUIRE(owner.ask("count") == "ok 8");
  REQUIRE(other_owner.ask("count") == "ok 7");
  // The executor it has left, and the one it is in: both may end.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  for (const pid_t server : broker.servers()) REQUIRE(::kill(server, SIGKILL) == 0);
  INFO(owner.program().errors() << other_owner.program().errors() << broker.log());
  REQUIRE(owner.ask("count") == "ok 9");
  REQUIRE(other_owner.ask("count") == "ok 8");
}

// More than is kept.
TEST_CASE("a client whose modules have large variables stays, and keeps them") {
  const BrokerFixture broker(with({"--patience-s", "3"}));
  Client endless(broker), owner(broker);
  REQUIRE(owner.ask("large_global") == "ok");
  REQUIRE(owner.ask("count") == "ok 6");
  spin(endless);
  const std::string answer = owner.ask("image other_ptx");
  INFO(answer << broker.log());
  REQUIRE(is_mps_error(answer));
  REQUIRE(owner.ask("count") == "ok 7");
}

TEST_CASE("kernels without end of one program leave one executor of three to the others") {
  const BrokerFixture broker(with({"--module-cache", "0"}));  // so that each newcomer loads
  const TemporaryFolder folder;
  Client there(broker);
  REQUIRE(there.ask("hold") == "ok");
  std::vector<Client> endless;
  for (int i = 0; i < 4; ++i) {
    endless.push_back(start_other(broker, folder, "endless"));
    endless.back().begin("spin");
    (void)endless.back().answer(std::chrono::seconds(3));
    require_newcomer_is_served(broker);
  }
  CHECK(broker.servers().size() == 3);
  require_ok(there, "image other_ptx", broker);
  require_ok(there, "check", broker);
}

TEST_CASE("kernels without end of ever other programs end when they block all executors") {
  const BrokerFixture broker(with({"--blocked-s", "3", "--module-cache", "0"}));
  const TemporaryFolder folder;
  std::vector<Client> endless;
  std::vector<std::string> answers;
  for (int i = 0; i < 7; ++i) {
    endless.push_back(start_other(broker, folder, "endless" + std::to_string(i)));
    endless.back().begin("spin");
    (void)endless.back().answer(std::chrono::seconds(3));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it has begun: a load that came before would wait for nobody
    const auto begun = std::chrono::steady_clock::now();
    Client newcomer(broker);
    require_ok(newcomer, "image ptx_of_" + std::to_string(i), broker);  // which no executor has loaded: what is loaded is served at once
    WARN("served after " << std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - begun).count() << " ms");
  }
  const std::string log = broker.log();
  INFO(log);
  CHECK(log.find("gets CUDA_ERROR_LAUNCH_TIMEOUT") != std::string::npos);
  CHECK(log.find("with all programs that have not ended without a fault before, has cost others") != std::string::npos);  // so it comes to an end
}
