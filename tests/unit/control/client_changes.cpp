// SPDX-License-Identifier: Apache-2.0
// `client set`: what the executor is told, when the command is answered, and what becomes of it where the executor refuses, dies, or the client ends.
#include <optional>
#include <string>

#include <unistd.h>

#include "broker/control/server/commands.hpp"
#include "broker/control/server/metrics_text.hpp"
#include "tests/unit/control/support/console.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

struct Broker : ControlFixture {
  Broker() { serve(); }
  Console console{*this};
  std::optional<Commands::Result> answered;
  std::string pid = std::to_string(getpid());

  void set(const std::string& options) {
    answered.reset();
    console.commands.execute("client set " + pid + ' ' + options, [this](const Commands::Result& result) { answered = result; });
  }
  void answer(const message::SessionProvision& order, CUresult status, std::uint32_t percentage) {
    executor().send(message::SessionProvisioned{
        .session = order.session, .order = order.order, .status = static_cast<std::uint32_t>(status), .thread_percentage = percentage});
  }
  void await_answer() {
    REQUIRE(turn_until(loop, [&] { return answered.has_value(); }));
  }
};

}  // namespace

TEST_CASE("client set: the executor is told all that holds, and the command is answered once it has") {
  Broker broker;
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  const auto page = map_header(client.fds);
  CHECK(header_of(page).thread_percentage == 0);
  broker.set("--active-thread-percentage 25");
  auto order = broker.executor().expect<message::SessionProvision>().message;
  CHECK(order.session == attached.session);
  CHECK(order.thread_percentage == 2'500);
  CHECK(order.device_limit_bytes == 0);
  CHECK(order.client_priority == 0);
  turn_for(broker.loop, 20);
  CHECK_FALSE(broker.answered);
  broker.answer(order, CUDA_SUCCESS, 2'500);
  broker.await_answer();
  CHECK(broker.answered->ok);
  CHECK(broker.answered->text.empty());
  CHECK(header_of(page).thread_percentage == 2'500);  // its library hears of it

  broker.set("--pinned-memory-limit 4G --client-priority=1 --device 0");
  order = broker.executor().expect<message::SessionProvision>().message;
  CHECK(order.thread_percentage == 2'500);
  CHECK(order.device_limit_bytes == 4ull << 30);
  CHECK(order.client_priority == 1);
  broker.answer(order, CUDA_SUCCESS, 2'500);
  broker.await_answer();
  broker.set("--pinned-memory-limit none");
  CHECK(broker.executor().expect<message::SessionProvision>().message.device_limit_bytes == 0);
  CHECK(broker.session(attached.session).client_priority == 1u);
}

TEST_CASE("client set: a part that cannot be had is told, and the session keeps what it has") {
  Broker broker;
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  broker.set("--active-thread-percentage 25 --client-priority 1");
  broker.answer(broker.executor().expect<message::SessionProvision>().message, CUDA_ERROR_OUT_OF_MEMORY, proto::kWholePercentage);
  broker.await_answer();
  CHECK_FALSE(broker.answered->ok);
  CHECK(broker.answered->text.find("that part of the multiprocessors (CUDA error 2): it keeps 100.0 %") != std::string::npos);
  CHECK(broker.session(attached.session).thread_percentage == proto::kWholePercentage);
  CHECK(broker.session(attached.session).client_priority == 1u);
}

TEST_CASE("client set: of two orders under way the later one holds") {
  Broker broker;
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  broker.set("--active-thread-percentage 25");
  const auto first = broker.executor().expect<message::SessionProvision>().message;
  broker.set("--active-thread-percentage 50");
  const auto second = broker.executor().expect<message::SessionProvision>().message;
  CHECK(second.order != first.order);
  broker.answer(first, CUDA_SUCCESS, 2'500);
  broker.await_answer();
  CHECK(broker.session(attached.session).thread_percentage == 5'000u);
  broker.answered.reset();
  broker.answer(second, CUDA_SUCCESS, 5'000);
  broker.await_answer();
  CHECK(broker.session(attached.session).thread_percentage == 5'000u);
}

TEST_CASE("client set: an executor that dies meanwhile leaves it to the next one, which is told with the session") {
  Broker broker;
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  broker.set("--active-thread-percentage 25 --pinned-memory-limit 1G");
  (void)broker.executor().expect<message::SessionProvision>();
  broker.executor().die();
  REQUIRE(turn_until(broker.loop, [&] { return broker.session(attached.session).phase == SessionPhase::moved; }));
  (void)broker.next_life(2);
  client.send(proto::Attach{});
  const auto open = broker.executor().expect<message::SessionOpen>().message;
  CHECK(open.thread_percentage == 2'500);
  CHECK(open.device_limit_bytes == 1ull << 30);
  broker.executor().send(message::SessionOpened{.session = attached.session});
  broker.await_answer();
  CHECK(broker.answered->ok);
}

TEST_CASE("client set: a client that ends meanwhile is told of") {
  Broker broker;
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  broker.set("--active-thread-percentage 25");
  (void)broker.executor().expect<message::SessionProvision>();
  client.hang_up();
  (void)broker.executor().expect<message::SessionClose>();
  broker.executor().send(message::SessionClosed{.session = attached.session});
  broker.await_answer();
  CHECK_FALSE(broker.answered->ok);
  CHECK(broker.answered->text == "the client has ended meanwhile");
}

TEST_CASE("client terminate: on whatever server it is") {
  Broker broker;
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  broker.console.commands.execute("client terminate " + broker.pid, [&](const Commands::Result& result) { broker.answered = result; });
  (void)broker.executor().expect<message::SessionClose>();
  broker.await_answer();
  CHECK(broker.answered->text == "0\n");
  CHECK(broker.session(attached.session).lost_error == CUDA_ERROR_MPS_CLIENT_TERMINATED);
}

TEST_CASE("a server has begun with its first client, or when it was asked for") {
  Broker broker;
  CHECK(broker.console.ok("servers --json").find(R"("has_begun":0)") != std::string::npos);
  broker.console.ok("start_server -uid " + std::to_string(geteuid()));
  CHECK(broker.console.ok("servers --json").find(R"("has_begun":1)") != std::string::npos);
  broker.console.ok("set_default_active_thread_percentage 50");  // for the next one
  CHECK(broker.console.ok("get_active_thread_percentage " + std::to_string(broker.executor().pid)) == "100.0\n");
}

TEST_CASE("what a client has been given is shown: by ps, in figures for Prometheus and in the log") {
  Broker broker;
  broker.console.ok("set_default_active_thread_percentage 33.3");
  broker.console.ok("set_default_client_priority 1");
  broker.console.ok("set_default_device_pinned_mem_limit 0 2G");
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  client.send(proto::Attach{});
  broker.executor().open_session();
  REQUIRE(client.await<proto::Attached>().header.status == CUDA_SUCCESS);
  CHECK(broker.console.ok("ps --json")
            .find(R"("memory_limit_bytes":2147483648,"active_thread_percentage":33.3,"sm_partition":null,"client_priority":1,)") !=
        std::string::npos);
  const std::string table = broker.console.ok("ps -l");
  for (const char* shown : {" SM% ", " PRIORITY ", " 33.3 ", " 1 "}) CHECK(table.find(shown) != std::string::npos);
  CHECK(broker.console.ok("ps").find("SM%") == std::string::npos);
  const std::string figures = metrics_of(broker.manager, 0);
  CHECK(figures.find("} 33.300000\n") != std::string::npos);
  CHECK(figures.find("mpsshim_client_priority{") != std::string::npos);
  broker.set("--active-thread-percentage 12.5");
  broker.answer(broker.executor().expect<message::SessionProvision>().message, CUDA_SUCCESS, 1'250);
  broker.await_answer();
  CHECK(broker.console.ok("ps --json").find(R"("active_thread_percentage":12.5,)") != std::string::npos);
}
