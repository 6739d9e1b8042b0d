// SPDX-License-Identifier: Apache-2.0
// A process on two devices is one client: in limits, in what is shown, and when it is terminated.
#include <unistd.h>

#include "broker/control/server/client_facts.hpp"
#include "tests/unit/control/support/console.hpp"
#include "tests/unit/control/support/two_devices.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

CUresult refused_on(ControlFixture& broker, unsigned device) {
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  proto::Attach attach;
  attach.device = device;
  return static_cast<CUresult>(client.ask<proto::Attached>(attach).header.status);
}

}  // namespace

TEST_CASE("several devices: a process counts once, another session of it on the same device as one more") {
  ClientCount count;
  CHECK(count.number() == 0);
  for (const unsigned device : {0u, 1u, 5u}) count.add(process(7), device);
  CHECK(count.number() == 1);
  count.add(process(7, 1001), 0);  // a number that another user's process had
  CHECK(count.number() == 2);
  count.add(process(8), 1);
  CHECK(count.number() == 3);
  count.add(process(7), 5);
  CHECK(count.number() == 4);
  count.add(process(7), 1);
  CHECK(count.number() == 4);
  for (const unsigned device : {0u, 1u}) count.add(process(0), device);  // nobody knows whose
  CHECK(count.number() == 6);
}

TEST_CASE("several devices: limits of clients and of a user's count the process once") {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.max_clients = 1;
  TwoDevices broker(true, limits);
  proto::Attached first, second;
  const TestClient one = broker.attach_on(0, first), two = broker.attach_on(1, second);
  CHECK(broker.manager.sessions().size() == 2);
  for (const unsigned device : {0u, 1u}) CHECK(refused_on(broker, device) == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);

  limits.max_clients = 5;
  limits.resources.user.sessions = 2;
  TwoDevices of_user(true, limits);
  std::vector<TestClient> clients;
  for (const unsigned device : {0u, 1u, 1u, 0u}) clients.push_back(of_user.attach_on(device, first));
  CHECK(refused_on(of_user, 1) == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
  Console console(of_user);
  CHECK(console.ok("users --csv").find('\n' + std::to_string(geteuid()) + ",2,2,2,") != std::string::npos);
}

TEST_CASE("several devices: what is shown says which sessions are one process's, one behind the other") {
  TwoDevices broker;
  proto::Attached first, second;
  const TestClient one = broker.attach_on(0, first), two = broker.attach_on(1, second);
  const std::vector<ClientFacts> facts = client_facts(broker.manager, nullptr);
  REQUIRE(facts.size() == 2);
  for (const ClientFacts& client : facts) CHECK(client.client == first.session);
  Console console(broker);
  const std::string number = std::to_string(first.session);
  CHECK(console.ok("ps --json").find("\"session\":" + std::to_string(second.session) + ",\"client\":" + number + ",") != std::string::npos);
  CHECK(console.ok("ps -l").find(" CLIENT ") != std::string::npos);
  CHECK(console.ok("ps").find("CLIENT") == std::string::npos);
  const std::string of_second = std::to_string(broker.manager.executors().at({1, 0})->number().number());
  CHECK(console.ok("ps --csv -p " + of_second).find("," + std::to_string(second.session) + "," + number + ",") != std::string::npos);
}

TEST_CASE("several devices: terminate_client ends the client on all of them") {
  TwoDevices broker;
  proto::Attached first, second;
  const TestClient one = broker.attach_on(0, first), two = broker.attach_on(1, second);
  const std::string server = std::to_string(broker.manager.executors().at({0, 0})->number().number());
  bool answered = false;
  Commands(broker.manager, nullptr).execute("terminate_client " + server + ' ' + std::to_string(getpid()), [&](const Commands::Result& result) {
    CHECK(result.text == "0\n");
    answered = true;
  });
  for (const unsigned device : {0u, 1u}) (void)broker.of(device).expect<message::SessionClose>();
  for (const std::uint64_t session : {first.session, second.session}) {
    CHECK(broker.session(session).lost_error == CUDA_ERROR_MPS_CLIENT_TERMINATED);
  }
  REQUIRE(turn_until(broker.loop, [&] { return answered; }));
}
