// SPDX-License-Identifier: Apache-2.0
// Groups of clients: who is in which, what executors are told, device memory that all of them hold together, and what commands answer.
#include <optional>
#include <string>

#include <unistd.h>

#include "broker/control/server/commands.hpp"
#include "tests/unit/control/support/console.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

struct Broker : ControlFixture {
  Broker() { serve(); }
  Console console{*this};

  // Of a client whose library asks for that group.
  TestClient attach_to(const std::string& group, proto::Attached* attached, message::SessionOpen* opened = nullptr) {
    TestClient client = connect();
    REQUIRE(client.hello().header.status == CUDA_SUCCESS);
    proto::ProvisionAsk ask;
    set_text(ask.group, group);
    (void)client.ask<proto::ProvisionTold>(ask);
    client.send(proto::Attach{});
    const auto open = executor().expect<message::SessionOpen>().message;
    if (opened != nullptr) *opened = open;
    executor().send(message::SessionOpened{.session = open.session});
    *attached = client.await<proto::Attached>();
    REQUIRE(attached->header.status == CUDA_SUCCESS);
    return client;
  }
  // Whether the executor is granted so many MiB for the session.
  bool grants(std::uint64_t session, std::uint64_t mib) {
    executor().send(message::MemoryWant{.session = session, .question = ++questions, .size_bytes = mib << 20});
    const auto grant = executor().expect<message::MemoryGrant>().message;
    left_mib = grant.left_bytes >> 20;
    return grant.status == CUDA_SUCCESS;
  }
  std::uint64_t questions = 0, left_mib = 0;
};

}  // namespace

TEST_CASE("namespace: its clients share device memory, and others do not") {
  Broker broker;
  CHECK(broker.console.ok("namespace create training") == "");
  CHECK(broker.console.ok("namespace set training --pinned-memory-limit 100M") == "");
  proto::Attached one, two, other;
  message::SessionOpen opened;
  const TestClient first = broker.attach_to("training", &one, &opened);
  CHECK(opened.device_limit_bytes == 100u << 20);
  CHECK(opened.group != 0);
  const TestClient second = broker.attach_to("training", &two);
  const TestClient third = broker.attach_to("", &other, &opened);
  CHECK(opened.device_limit_bytes == 0);
  CHECK(opened.group == 0);
  CHECK(broker.grants(one.session, 60));
  CHECK(broker.left_mib == 40);
  CHECK_FALSE(broker.grants(two.session, 41));
  CHECK(broker.grants(two.session, 40));  // what the first leaves
  CHECK_FALSE(broker.grants(one.session, 1));
  CHECK(broker.grants(other.session, 500));
  CHECK(broker.console.ok("namespace list --csv") ==
        "name,uid,clients,device_bytes,pinned_memory_request_bytes,pinned_memory_limit_bytes,active_thread_percentage,active_thread_percentage_"
        "request,client_"
        "priority,own_"
        "executor,multiprocessors_not_lent_on\ntraining," +
            std::to_string(geteuid()) + ",2,104857600 0,,104857600,100.0,,,0,\n");
}

TEST_CASE("namespace: memory that is kept for its clients is refused to others, and to nobody once it is not") {
  Broker broker;
  const std::uint64_t total_mib = broker.manager.facts()->device[0].total_memory_bytes >> 20;
  REQUIRE(total_mib > 400);
  proto::Attached one, two, other;
  message::SessionOpen opened;
  const TestClient outsider = broker.attach_to("", &other, &opened);
  CHECK(opened.device_limit_bytes == 0);  // nobody asks
  CHECK(broker.grants(other.session, 50));
  broker.console.ok("namespace create kept");
  std::optional<Commands::Result> answered;
  broker.console.commands.execute("namespace set kept --pinned-memory-request 300M", [&](const Commands::Result& result) { answered = result; });
  const auto order = broker.executor().expect<message::SessionProvision>().message;  // now it has to ask
  CHECK(order.session == other.session);
  CHECK(order.device_limit_bytes == total_mib << 20);
  broker.executor().send(message::SessionProvisioned{
      .session = order.session, .order = order.order, .status = CUDA_SUCCESS, .thread_percentage = proto::kWholePercentage});
  turn_for(broker.loop, 10);
  REQUIRE(answered);
  CHECK(answered->ok);
  const TestClient inside = broker.attach_to("kept", &one, &opened);
  CHECK(opened.device_limit_bytes == 0);
  const TestClient late = broker.attach_to("", &two, &opened);
  CHECK(opened.device_limit_bytes == total_mib << 20);
  const std::uint64_t free_mib = total_mib - 50 - 300;
  CHECK_FALSE(broker.grants(other.session, free_mib + 1));
  CHECK(broker.left_mib == free_mib);
  CHECK(broker.grants(two.session, free_mib));
  CHECK_FALSE(broker.grants(other.session, 1));
  CHECK(broker.grants(one.session, 300));  // what was kept
  CHECK(broker.console.ok("namespace list --json").find(R"("pinned_memory_request_bytes":314572800)") != std::string::npos);
  CHECK(broker.console.ok("namespace get kept pinned-memory-request") == "300M\n");
  CHECK(broker.console.ok("namespace get kept clients") == "1\n");
  CHECK(broker.console.ok("namespace get kept uid --uid " + std::to_string(geteuid())) == std::to_string(geteuid()) + "\n");
  CHECK_FALSE(broker.grants(two.session, 1));
  CHECK(broker.console.error("namespace set kept --pinned-memory-limit 299M") == "300 MiB cannot be kept for clients that may have 299 MiB together");
  broker.console.ok("namespace create more");
  CHECK(broker.console.error("namespace set more --pinned-memory-request " + std::to_string(total_mib - 299) + "M") ==
        std::to_string(total_mib - 299) + " MiB cannot be kept: device 0 has " + std::to_string(total_mib) +
            " MiB, and 300 MiB are kept for other namespaces");
}

TEST_CASE("namespace: what is set holds for clients that are connected, and is answered when it does") {
  Broker broker;
  proto::Attached one, two;
  message::SessionOpen first_opened, second_opened;
  const TestClient first = broker.attach_to("batch", &one, &first_opened);  // makes it
  const TestClient second = broker.attach_to("batch", &two, &second_opened);
  CHECK(first_opened.group == second_opened.group);
  CHECK(first_opened.group_percentage == 0);
  std::optional<Commands::Result> answered;
  broker.console.commands.execute("namespace set batch --active-thread-percentage 25 --client-priority 1",
                                  [&](const Commands::Result& result) { answered = result; });
  for (int i = 0; i < 2; ++i) {
    CHECK_FALSE(answered);
    const auto order = broker.executor().expect<message::SessionProvision>().message;
    CHECK(order.group == first_opened.group);
    CHECK(order.group_percentage == 2'500);
    CHECK(order.thread_percentage == proto::kWholePercentage);
    CHECK(order.client_priority == 1);
    broker.executor().send(message::SessionProvisioned{
        .session = order.session, .order = order.order, .status = CUDA_SUCCESS, .thread_percentage = proto::kWholePercentage});
    turn_for(broker.loop, 10);
  }
  REQUIRE(answered);
  CHECK(answered->ok);
  const auto get = [&](const char* field) { return broker.console.ok(std::string("namespace get batch ") + field); };
  CHECK(get("active-thread-percentage") == "25.0\n");
  CHECK(get("client-priority") == "1\n");
  CHECK(get("pinned-memory-limit") == "no limit\n");
  CHECK(get("pinned-memory-request") == "none\n");
  CHECK(get("own-executor") == "no\n");
  CHECK(get("clients") == "2\n");
  proto::Attached late;
  message::SessionOpen opened;
  const TestClient third = broker.attach_to("batch", &late, &opened);
  CHECK(late.thread_percentage == 2'500);
  CHECK(opened.group_percentage == 2'500);
  CHECK(opened.client_priority == 1);
  CHECK(broker.console.ok("ps --json").find(R"("group":"batch")") != std::string::npos);
}

TEST_CASE("namespace: names, and what is there") {
  Broker broker;
  CHECK(broker.console.ok("namespace list --json") == "{\"schema\":\"mpsshim.namespace_list\",\"version\":1,\"namespaces\":[]}\n");
  broker.console.ok("namespace create a");
  CHECK(broker.console.error("namespace create a") == "there is a namespace a already");
  CHECK(broker.console.error("namespace create default").starts_with("default is what clients without a namespace have"));
  CHECK(broker.console.error("namespace delete b") == "there is no namespace b: see namespace list");
  CHECK(broker.console.ok("namespace delete a") == "");
  proto::Attached one;
  message::SessionOpen opened;
  const TestClient client = broker.attach_to("c", &one);
  CHECK(broker.console.error("namespace delete c") == "namespace c has 1 client: see ps -l");
  // What a library would not send is nobody's.
  proto::Attached two;
  const TestClient odd = broker.attach_to("UPPER", &two, &opened);
  CHECK(opened.group == 0);
  for (std::size_t made = 1; made < Namespaces::kMost; ++made) broker.console.ok("namespace create n" + std::to_string(made));
  CHECK(broker.console.error("namespace create one_more").starts_with("there are 1024 namespaces"));
  TestClient refused = broker.connect();
  REQUIRE(refused.hello().header.status == CUDA_SUCCESS);
  proto::ProvisionAsk ask;
  set_text(ask.group, "one_more");
  CHECK(refused.ask<proto::ProvisionTold>(ask).header.status == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
}

namespace {

// A group with an executor of its own, and one more for it.
struct OwnExecutor : ControlFixture {
  explicit OwnExecutor(unsigned executors) : ControlFixture(limits_with(executors)) {
    serve();
    console.ok("namespace create apart --own-executor");
  }
  Console console{*this};
  TestClient ask(const std::string& group) {
    TestClient client = connect();
    REQUIRE(client.hello().header.status == CUDA_SUCCESS);
    proto::ProvisionAsk question;
    set_text(question.group, group);
    (void)client.ask<proto::ProvisionTold>(question);
    client.send(proto::Attach{});
    return client;
  }
  ExecutorPeer& life(std::size_t which) {
    REQUIRE(turn_until(loop, [&] { return launcher.lives.size() > which; }));
    return *launcher.lives.at(which);
  }
};

}  // namespace

TEST_CASE("namespace: one with an executor of its own shares it among its clients, and a fault there reaches no other") {
  OwnExecutor broker(3);
  TestClient member = broker.ask("apart");
  broker.life(1).ready();
  broker.life(1).open_session();
  const auto one = member.await<proto::Attached>();
  REQUIRE(one.header.status == CUDA_SUCCESS);
  TestClient outsider = broker.ask("");
  broker.life(0).open_session();
  const auto other = outsider.await<proto::Attached>();
  REQUIRE(other.header.status == CUDA_SUCCESS);
  TestClient second = broker.ask("apart");
  broker.life(1).open_session();
  REQUIRE(second.await<proto::Attached>().header.status == CUDA_SUCCESS);
  TestClient of_a_plain_group = broker.ask("plain");
  broker.life(0).open_session();
  REQUIRE(of_a_plain_group.await<proto::Attached>().header.status == CUDA_SUCCESS);
  CHECK(broker.console.ok("namespace list --csv").find("apart," + std::to_string(geteuid()) + ",2,0 0,,,100.0,,,1,\n") != std::string::npos);
  CHECK(broker.console.ok("namespace list").find("own") != std::string::npos);
  CHECK(broker.launcher.lives.size() == 2);
  const auto members_page = map_header(member.fds), outsiders_page = map_header(outsider.fds);
  broker.life(1).set_progress(0, one.session, 1, 0);
  broker.life(0).set_progress(0, other.session, 1, 0);  // both are at work
  broker.life(1).report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  broker.life(1).die();
  REQUIRE(turn_until(broker.loop, [&] { return header_of(members_page).session_error == CUDA_ERROR_ILLEGAL_ADDRESS; }));
  CHECK(header_of(outsiders_page).session_error == 0);
  CHECK_FALSE(broker.life(0).dead);
}

TEST_CASE("namespace: where its own executor cannot be had its clients are not served among the others") {
  {
    OwnExecutor broker(1);
    TestClient member = broker.ask("apart");
    CHECK(member.await<proto::Attached>().header.status == CUDA_ERROR_MPS_SERVER_NOT_READY);
    TestClient outsider = broker.ask("");
    broker.life(0).open_session();
    CHECK(outsider.await<proto::Attached>().header.status == CUDA_SUCCESS);
  }
  OwnExecutor broker(2);  // a GPU that takes one process only
  TestClient member = broker.ask("apart");
  broker.life(1).ready(CUDA_ERROR_DEVICE_UNAVAILABLE);
  CHECK(member.await<proto::Attached>().header.status == CUDA_ERROR_MPS_SERVER_NOT_READY);
  turn_for(broker.loop, 20);
  CHECK_FALSE(broker.life(0).receive());
}
