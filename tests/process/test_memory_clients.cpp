// SPDX-License-Identifier: Apache-2.0
// Device memory between clients: nobody reads what another has written, a full device says so at once, and what is free serves whoever asks.
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

// A broker whose device has so much memory; the CPU driver alone can be told.
class SmallDevice {
 public:
  explicit SmallDevice(const char* mib, const std::vector<std::string>& arguments = {}) {
    setenv("MPSSHIM_CPU_MEMORY_MIB", mib, 1);
    BrokerOptions options;
    options.arguments = arguments;
    broker_.emplace(options);
    unsetenv("MPSSHIM_CPU_MEMORY_MIB");
  }
  [[nodiscard]] const BrokerFixture& broker() const { return *broker_; }

 private:
  std::optional<BrokerFixture> broker_;
};

Client start(const BrokerFixture& broker) { return Client(broker, "memory_client"); }

}  // namespace

TEST_CASE("no client reads what another has written") {
  const BrokerFixture broker;
  SECTION("memory of a client that ended") {
    {
      Client writer = start(broker);
      REQUIRE(writer.ask("fill 150") == "ok");
      REQUIRE(writer.program().say(""));  // ends its input
    }
    REQUIRE(broker.wait_for_clients(0));
    CHECK(start(broker).ask("search 300") == "ok 0");
  }
  SECTION("memory that a client has freed, and what it still has, while it lives on") {
    Client writer = start(broker);
    REQUIRE(writer.ask("fill 400") == "ok");
    REQUIRE(writer.ask("drop") == "ok");
    REQUIRE(writer.ask("fill 100") == "ok");
    Client reader = start(broker);
    for (int turn = 0; turn < 3; ++turn) CHECK(reader.ask("search 200") == "ok 0");
  }
  SECTION("the test finds a secret where there is one: a client reads its own memory again") {
    Client client = start(broker);
    REQUIRE(client.ask("fill 20") == "ok");
    REQUIRE(client.ask("drop") == "ok");
    CHECK(client.ask("search 20") != "ok 0");
  }
}

TEST_CASE("a client whose range of addresses is full gets further ones, as often as it needs them") {
  if (on_gpu()) MPSSHIM_SKIP("a GPU cannot be filled beside other tests");
  // In the smallest window the 65th client has 2 GiB of addresses, on a device of 12 GiB.
  const SmallDevice device("12288", {"--window", "0x200000000000-0x230000000000"});
  std::vector<Client> others;
  for (int i = 0; i < 64; ++i) others.push_back(Client::begin(device.broker(), "memory_client"));
  for (Client& other : others) REQUIRE(other.answer() == "ok attached");
  Client client = start(device.broker());
  REQUIRE(client.ask("hold") == "ok");
  for (int turn = 0; turn < 3; ++turn) {
    const std::string answer = client.ask("exhaust 500");
    INFO(answer << "\n" << device.broker().log());
    CHECK(answer.starts_with("ok 24 2 "));
    REQUIRE(client.ask("copy") == "ok");
    REQUIRE(client.ask("give") == "ok");
  }
  REQUIRE(client.ask("check") == "ok");
  CHECK(device.broker().log().find("gets a further range") != std::string::npos);
}

TEST_CASE("a full device: an error at once, and free memory serves again") {
  if (on_gpu()) MPSSHIM_SKIP("a GPU cannot be filled beside other tests");
  const SmallDevice device("512");
  Client client = start(device.broker());
  std::istringstream answer(client.ask("exhaust 8"));
  std::string ok, error, name;
  int count = 0;
  long took_us = 0;
  answer >> ok >> count >> error >> name >> took_us;
  INFO(answer.str());
  CHECK(count >= 60);  // of 64: the rest is the executor's
  CHECK(error == "2");
  CHECK(took_us < 100'000);
  REQUIRE(client.ask("give") == "ok");
  // What the heap keeps for later is in the way of a larger request, and makes room for it.
  CHECK(client.ask("take 450") == "ok");
  CHECK(client.ask("take 100") == "2 CUDA_ERROR_OUT_OF_MEMORY");
  REQUIRE(client.ask("give") == "ok");
  CHECK(client.ask("take 450") == "ok");
}

TEST_CASE("what a user's clients may have of the device is theirs together, in whatever form, and stays so after restarts") {
  BrokerOptions options;
  options.arguments = {"--user-device-mib", "256"};
  const BrokerFixture broker(options);
  const std::string refused = "2 CUDA_ERROR_OUT_OF_MEMORY";
  Client first = start(broker);
  std::optional<Client> second(start(broker));
  CHECK(first.ask("total") == "ok 256");
  CHECK(first.ask("free") == "ok 256");
  REQUIRE(first.ask("take 100") == "ok");
  CHECK(second->ask("free") == "ok 156");
  REQUIRE(second->ask("piece 50") == "ok");
  REQUIRE(second->ask("array 50") == "ok");
  for (const char* more : {"take 60", "piece 60", "array 60"}) {
    CHECK(first.ask(more) == refused);
    CHECK(second->ask(more) == refused);
  }
  CHECK(broker.log().find("may hold 256 MiB (--user-device-mib)") != std::string::npos);
  CHECK(broker.ctl({"users"}).output.find(" 200/256 ") != std::string::npos);
  // What is given back is free at once, for whoever gave it.
  REQUIRE(second->ask("back") == "ok");
  CHECK(second->ask("array 150") == "ok");
  CHECK(first.ask("take 60") == refused);
  REQUIRE(second->ask("back") == "ok");
  CHECK(second->ask("piece 150") == "ok");
  REQUIRE(second->ask("back") == "ok");
  CHECK(second->ask("take 150") == "ok");
  CHECK(second->ask("piece 8") == refused);
  for (const std::vector<std::string>& restart : {std::vector<std::string>{"restart", "executors"}, {"restart"}}) {
    const Outcome done = broker.ctl(restart);
    INFO(done.explain() << broker.log());
    REQUIRE(done.ok());
    CHECK(first.ask("free") == "ok 6");
    CHECK(first.ask("take 60") == refused);
  }
  second.reset();
  CHECK(eventually(std::chrono::seconds(10), [&] { return first.ask("free") == "ok 156"; }));
  CHECK(first.ask("take 140") == "ok");
}
