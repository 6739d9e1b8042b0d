// SPDX-License-Identifier: Apache-2.0
// Limits of device memory for each client, by the manual's rules: a default, a server's, a client's own; the lower of the last two holds. Beside
// them, variables of NVIDIA's that nothing enforces are told.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr const char* kLimit = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const std::string kRefused = "2 CUDA_ERROR_OUT_OF_MEMORY";

Client start(const BrokerFixture& broker, const std::map<std::string, std::string>& environment = {}, const std::string& program = "memory_client") {
  ProgramOptions options;
  options.converses = true;
  options.environment = environment;
  return {broker.start(program, options), Client::Attached::waits};
}

std::string server(const BrokerFixture& broker) {
  const std::string text = broker.ctl({"get_server_list"}).output;
  return text.substr(0, text.find('\n'));
}

// Devices are known once the first server is ready.
void await_devices(const BrokerFixture& broker) {
  REQUIRE(eventually(std::chrono::seconds(30), [&] { return broker.ctl({"get_default_device_pinned_mem_limit", "0"}).ok(); }));
}

void require_limit(Client& client, unsigned mib) {
  CHECK(client.ask("total") == "ok " + std::to_string(mib));
  CHECK(client.ask("free") == "ok " + std::to_string(mib));
  CHECK(client.ask("take " + std::to_string(mib + 2)) == kRefused);
  REQUIRE(client.ask("take " + std::to_string(mib / 2)) == "ok");
  CHECK(client.ask("take " + std::to_string(mib / 2 + 2)) == kRefused);
  CHECK(client.ask("array " + std::to_string(mib / 2 + 2)) == kRefused);
  CHECK(client.ask("piece " + std::to_string(mib / 2 + 2)) == kRefused);
  REQUIRE(client.ask("give") == "ok");
  CHECK(client.ask("free") == "ok " + std::to_string(mib));
  REQUIRE(client.ask("take " + std::to_string(mib / 2)) == "ok");
}

}  // namespace

TEST_CASE("a client holds to what it has asked for itself, and its neighbour to nothing") {
  const BrokerFixture broker;
  Client limited = start(broker, {{kLimit, "0=64M"}});
  Client free = start(broker);
  require_limit(limited, 64);
  CHECK(free.ask("take 200") == "ok");
  CHECK(broker.log().find("MiB of device memory refused: it holds") != std::string::npos);
}

TEST_CASE("the broker's environment is the default, commands change it for servers without clients, and a server's own goes above it") {
  BrokerOptions options;
  options.environment = {{kLimit, "0=128MB"}};
  const BrokerFixture broker(options);
  await_devices(broker);
  CHECK(broker.ctl({"get_default_device_pinned_mem_limit", "0"}).output == "128M\n");
  REQUIRE(broker.ctl({"set_default_device_pinned_mem_limit", "0", "96M"}).ok());
  Client first = start(broker);
  require_limit(first, 96);
  REQUIRE(broker.ctl({"set_default_device_pinned_mem_limit", "0", "1G"}).ok());  // for the next server
  CHECK(broker.ctl({"get_default_device_pinned_mem_limit", "0"}).output == "1G\n");
  CHECK(broker.ctl({"get_device_pinned_mem_limit", server(broker), "0"}).output == "96M\n");
  REQUIRE(broker.ctl({"set_device_pinned_mem_limit", server(broker), "0", "160M"}).ok());
  Client second = start(broker);
  require_limit(second, 160);
  CHECK(first.ask("total") == "ok 96");  // clients that are there keep theirs
  Client asks_for_less = start(broker, {{kLimit, "0=32M"}});
  require_limit(asks_for_less, 32);
  Client asks_for_more = start(broker, {{kLimit, "0=300M"}});
  require_limit(asks_for_more, 160);
  // They are the server's, whichever process it is.
  REQUIRE(broker.ctl({"restart"}).ok());
  CHECK(broker.ctl({"get_device_pinned_mem_limit", server(broker), "0"}).output == "160M\n");
  CHECK(first.ask("total") == "ok 96");
  CHECK(second.ask("take 100") == kRefused);
  Client third = start(broker);
  require_limit(third, 160);
}

TEST_CASE("what a client has freed is free at once, as cuMemGetInfo has it") {
  const BrokerFixture broker;
  Client client = start(broker, {{kLimit, "0=512M"}});
  for (const std::size_t mib : {16, 80, 300}) CHECK(client.ask("freed " + std::to_string(mib) + " 50") == "ok 512");
}

TEST_CASE("devices are named by index or UUID, sizes in every spelling") {
  const BrokerFixture broker;
  await_devices(broker);
  const std::string list = broker.ctl({"get_device_client_list"}).output;
  const std::string uuid = list.substr(0, list.find('\n'));
  REQUIRE(uuid.starts_with("GPU-"));
  for (const char* size : {"3G", "3g", "3GB", "3GiB", "3072M", "3072MB", "3145728K"}) {
    INFO(size);
    REQUIRE(broker.ctl({"set_default_device_pinned_mem_limit", uuid, "1G"}).ok());
    CHECK(broker.ctl({"set_default_device_pinned_mem_limit", "0", size}).ok());
    CHECK(broker.ctl({"get_default_device_pinned_mem_limit", uuid}).output == "3G\n");
  }
  CHECK(broker.ctl({"set_device_pinned_mem_limit", server(broker), uuid, "48M"}).ok());
  Client limited = start(broker);
  require_limit(limited, 48);
  Client lower = start(broker, {{kLimit, uuid + "=16MB"}});
  require_limit(lower, 16);
}

TEST_CASE("a client keeps its limit, and what it holds, over its executor's death") {
  const BrokerFixture broker;
  Client limited = start(broker, {{kLimit, "0=64M"}});
  REQUIRE(limited.ask("take 40") == "ok");
  const std::vector<pid_t> before = broker.servers();
  REQUIRE(before.size() == 1);
  REQUIRE(::kill(before.front(), SIGKILL) == 0);
  REQUIRE(eventually(std::chrono::seconds(30), [&] { return !broker.servers().empty() && broker.servers() != before; }));
  CHECK(limited.ask("total") == "ok 64");
  CHECK(limited.ask("take 30") == kRefused);
  CHECK(limited.ask("take 20") == "ok");
  CHECK(limited.ask("give") == "ok");
  CHECK(limited.ask("free") == "ok 64");
}

TEST_CASE("a module's variables count, for as long as it is loaded, and in the next executor, too") {
  const BrokerFixture broker;
  Client limited = start(broker, {{kLimit, "0=64M"}}, "variables_client");
  Client free = start(broker, {}, "variables_client");
  const auto is_refused = [&](const char* module) {
    const std::string answer = limited.ask(module);
    INFO(answer << broker.log());
    CHECK(answer.starts_with(kRefused));
  };
  is_refused("load 100 0");
  CHECK(free.ask("load 100 0") == "ok");
  REQUIRE(limited.ask("load 40 0") == "ok");
  is_refused("load 41 0");
  REQUIRE(limited.ask("count") == "ok 6");
  REQUIRE(limited.ask("unload") == "ok");
  REQUIRE(limited.ask("load 41 0") == "ok");
  for (int i = 0; i < 5; ++i) {
    REQUIRE(limited.ask("post") == "ok");  // what it uses is let go when that has ended
    REQUIRE(limited.ask("unload") == "ok");
    REQUIRE(limited.ask("load 41 0") == "ok");
  }
  REQUIRE(limited.ask("count") == "ok 6");
  std::this_thread::sleep_for(std::chrono::seconds(1));
  REQUIRE(::kill(broker.servers().at(0), SIGKILL) == 0);
  CHECK(limited.ask("count") == "ok 7");
  is_refused("load 40 0");
}

TEST_CASE("limits that make no sense are one line each, and change nothing") {
  const BrokerFixture broker;
  await_devices(broker);
  const std::string pid = server(broker);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"set_default_device_pinned_mem_limit", "0"},
                                             {"set_default_device_pinned_mem_limit", "9", "1G"},
                                             {"set_default_device_pinned_mem_limit", "GPU-zz", "1G"},
                                             {"set_default_device_pinned_mem_limit", "0", "1"},
                                             {"set_default_device_pinned_mem_limit", "0", "0G"},
                                             {"set_default_device_pinned_mem_limit", "0", "-1G"},
                                             {"set_default_device_pinned_mem_limit", "0", "99999999999999999999G"},
                                             {"set_device_pinned_mem_limit", "1", "0", "1G"},
                                             {"set_device_pinned_mem_limit", pid, "0", "1Q"},
                                             {"get_device_pinned_mem_limit", pid},
                                             {"set_foo_device_pinned_mem_limit", "0", "1G"}}) {
    const Outcome outcome = broker.ctl(words);
    INFO(words.front() << ": " << outcome.explain());
    CHECK(outcome.exit_code == 1);
    CHECK(outcome.output.empty());
    CHECK(std::count(outcome.errors.begin(), outcome.errors.end(), '\n') == 1);
  }
  CHECK(broker.ctl({"get_default_device_pinned_mem_limit", "0"}).output == "no limit\n");
  CHECK(broker.ctl({"get_device_pinned_mem_limit", pid, "0"}).output == "no limit\n");
}

TEST_CASE("a client is told of a limit that is none, and of variables that nothing enforces, so is the log") {
  const BrokerFixture broker;
  Client client = start(broker, {{kLimit, "0=64M,7=1G"},
                                 {"CUDA_MPS_OF_A_LATER_RELEASE", "25"},
                                 {"CUDA_MPS_OF_ANOTHER_RELEASE", "1"},
                                 {"CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", "0"}});
  require_limit(client, 64);
  const std::string errors = client.program().errors();
  INFO(errors << broker.log());
  CHECK(errors.find("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: \"7=1G\" is no limit of device memory") != std::string::npos);
  const std::string names = "CUDA_MPS_OF_ANOTHER_RELEASE, CUDA_MPS_OF_A_LATER_RELEASE are set and without effect";
  const std::size_t told = errors.find(names);
  CHECK(told != std::string::npos);
  CHECK(errors.find("without effect", told + names.size()) == std::string::npos);
  CHECK(broker.log().find(names) != std::string::npos);
  Client quiet = start(broker, {{"CUDA_MPS_SM_PARTITION", "0"}});
  CHECK(quiet.program().errors().empty());
}

TEST_CASE("clients by device, a server for a user") {
  const BrokerFixture broker;
  Client client = start(broker);
  const std::string list = broker.ctl({"get_device_client_list"}).output;
  CHECK(list.starts_with("GPU-"));
  CHECK(list.find("\n" + std::to_string(client.program().pid()) + "\n") != std::string::npos);
  CHECK(broker.ctl({"get_device_client_list", server(broker)}).output == list);
  CHECK(broker.ctl({"get_device_client_list", "1"}).exit_code == 1);
  CHECK(broker.ctl({"start_server", "-uid", std::to_string(geteuid())}).ok());
  CHECK(broker.ctl({"start_server", "-uid", "65534"}).exit_code == 1);
  CHECK(broker.ctl({"start_server"}).exit_code == 1);
}
