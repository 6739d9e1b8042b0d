// SPDX-License-Identifier: Apache-2.0
// Hello and Attach, as clients see them.
#include <fcntl.h>
#include <sys/mman.h>

#include <deque>

#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

TEST_CASE("hello: facts that nobody can change") {
  ControlFixture broker;
  broker.serve();
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  REQUIRE(client.fds.count == 1);
  const auto facts = proto::Mapping::map(client.fds.fds[0], 0, sizeof(proto::DriverFacts), proto::Access::read_only);
  REQUIRE(facts);
  CHECK(reinterpret_cast<const proto::DriverFacts*>(facts.data())->driver_version == 13000);
  CHECK(mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, client.fds.fds[0].get(), 0) == MAP_FAILED);
  CHECK(broker.manager.sessions().empty());
}

TEST_CASE("hello before an executor is ready is answered once it is") {
  ControlFixture broker;
  TestClient client = broker.connect();
  client.send(proto::Hello{});
  turn_for(broker.loop, 20);
  proto::Welcome welcome;
  CHECK_FALSE(client.poll(welcome));
  broker.serve();
  CHECK(client.await<proto::Welcome>().header.status == CUDA_SUCCESS);
}

TEST_CASE("attach: a channel with its header, sealed, and the same leases in the executor") {
  ControlFixture broker;
  broker.serve();
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  client.send(proto::Attach{});
  const auto open = broker.executor().expect<message::SessionOpen>();
  CHECK(open.message.client_pid == static_cast<std::uint32_t>(getpid()));
  proto::Attached early;
  CHECK_FALSE(client.poll(early));
  broker.executor().send(message::SessionOpened{.session = open.message.session});
  const auto attached = client.await<proto::Attached>();
  REQUIRE(attached.header.status == CUDA_SUCCESS);
  CHECK(attached.session == open.message.session);
  CHECK(attached.lost == 0);
  CHECK(attached.device_lease.address == open.message.device_lease.address);
  CHECK(attached.pinned_lease.address == open.message.pinned_lease.address);
  REQUIRE(client.fds.count == 4);
  CHECK(proto::sealed_size(client.fds.fds[0]) == proto::kChannelBytes);
  CHECK(proto::sealed_size(client.fds.fds[1]) == proto::kFenceSegmentBytes);
  const auto page = map_header(client.fds);
  CHECK(header_of(page).magic == proto::kChannelMagic);
  CHECK(header_of(page).session == attached.session);
  CHECK(header_of(page).epoch == attached.epoch);
}

TEST_CASE("client and executor share the doorbells, which never block") {
  ControlFixture broker;
  broker.serve();
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  client.send(proto::Attach{});
  const auto open = broker.executor().expect<message::SessionOpen>();
  broker.executor().send(message::SessionOpened{.session = open.message.session});
  (void)client.await<proto::Attached>();
  for (const auto& [mine, its] : {std::pair(client.fds.fds[2].get(), open.fds.ring_doorbell.get()),
                                  std::pair(client.fds.fds[3].get(), open.fds.completion_doorbell.get())}) {
    std::uint64_t value = 5;
    REQUIRE(write(mine, &value, sizeof value) == sizeof value);
    REQUIRE(read(its, &value, sizeof value) == sizeof value);
    CHECK(value == 5);
    CHECK(read(its, &value, sizeof value) == -1);
    CHECK(errno == EAGAIN);
  }
}

TEST_CASE("another layout, or a newer protocol, is refused with a status and the broker's version, not with silence") {
  ControlFixture broker;
  broker.serve();
  for (const proto::Version theirs : {proto::Version{proto::kLayoutMajor + 1, 0}, proto::Version{proto::kLayoutMajor - 1, proto::kLayoutMinor},
                                      proto::Version{proto::kLayoutMajor, proto::kLayoutMinor + 1}}) {
    TestClient client = broker.connect();
    proto::Hello hello;
    hello.layout_major = theirs.major;
    hello.layout_minor = theirs.minor;
    const auto welcome = client.ask<proto::Welcome>(hello);
    CHECK(welcome.header.status == CUDA_ERROR_MPS_CONNECTION_FAILED);
    CHECK(proto::Version{welcome.layout_major, welcome.layout_minor} == proto::kVersion);
    CHECK(client.fds.count == 0);
    CHECK(client.is_closed());
  }
}

TEST_CASE("a client of the release before is served, in its own version") {
  ControlFixture broker;
  broker.serve();
  TestClient client = broker.connect();
  proto::Hello hello;
  hello.layout_minor = proto::kLayoutMinor - 1;
  const proto::FileDescriptor self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  const int fd = self.get();
  const auto welcome = client.ask<proto::Welcome>(hello, {&fd, 1});
  REQUIRE(welcome.header.status == CUDA_SUCCESS);
  CHECK(welcome.layout_minor == proto::kLayoutMinor - 1);
  client.send(proto::Attach{});
  const auto open = broker.executor().expect<message::SessionOpen>();
  broker.executor().send(message::SessionOpened{.session = open.message.session});
  REQUIRE(client.await<proto::Attached>().header.status == CUDA_SUCCESS);
  CHECK(header_of(map_header(client.fds)).layout_minor == proto::kLayoutMinor - 1);
}

TEST_CASE("a pidfd of another process, or something that is none, is refused") {
  ControlFixture broker;
  broker.serve();
  const proto::FileDescriptor parent(static_cast<int>(syscall(SYS_pidfd_open, getppid(), 0)));
  const proto::FileDescriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const int fd : {parent.get(), null.get()}) {
    TestClient client = broker.connect();
    CHECK(client.ask<proto::Welcome>(proto::Hello{}, {&fd, 1}).header.status == CUDA_ERROR_MPS_CONNECTION_FAILED);
    CHECK(client.is_closed());
  }
}

TEST_CASE("the driver's refusal of a session reaches the client, and nothing stays") {
  ControlFixture broker;
  broker.serve();
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  client.send(proto::Attach{});
  const auto open = broker.executor().expect<message::SessionOpen>();
  broker.executor().send(message::SessionOpened{.session = open.message.session, .status = CUDA_ERROR_OUT_OF_MEMORY});
  CHECK(client.await<proto::Attached>().header.status == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(broker.manager.sessions().empty());
  client.send(proto::Attach{});  // it may try again
  broker.executor().open_session();
  CHECK(client.await<proto::Attached>().header.status == CUDA_SUCCESS);
}

TEST_CASE("an executor that does not answer costs the client ten seconds, not for ever") {
  ControlFixture broker;  // a fraction of a second here
  broker.serve();
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  client.send(proto::Attach{});
  const auto open = broker.executor().expect<message::SessionOpen>();
  CHECK(client.await<proto::Attached>().header.status == CUDA_ERROR_MPS_SERVER_NOT_READY);
  // The answer that comes late is kept for the next Attach.
  broker.executor().send(message::SessionOpened{.session = open.message.session});
  turn_for(broker.loop, 10);
  CHECK(client.ask<proto::Attached>(proto::Attach{}).header.status == CUDA_SUCCESS);
  CHECK(client.fds.count == 4);
}

TEST_CASE("devices that do not exist, and a second attach without reason") {
  ControlFixture broker;
  broker.serve();
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  proto::Attach attach;
  attach.device = 2;
  CHECK(client.ask<proto::Attached>(attach).header.status == CUDA_ERROR_INVALID_DEVICE);
  attach.device = 0;
  client.send(attach);
  broker.executor().open_session();
  CHECK(client.await<proto::Attached>().header.status == CUDA_SUCCESS);
  CHECK(client.ask<proto::Attached>(attach).header.status == CUDA_ERROR_MPS_RPC_FAILURE);
  attach.device = 1;
  CHECK(client.ask<proto::Attached>(attach).header.status == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("a second device has an executor of its own, started for its first client") {
  ControlFixture broker;
  broker.serve();
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  proto::Attach attach;
  attach.device = 1;
  client.send(attach);
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  CHECK(broker.executor().options.device == 1);
  broker.executor().ready();
  broker.executor().open_session();
  CHECK(client.await<proto::Attached>().header.status == CUDA_SUCCESS);
}

TEST_CASE("as many clients as allowed and not one more") {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.max_clients = 3;
  ControlFixture broker(limits);
  broker.serve();
  std::vector<TestClient> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(broker.attach());
  TestClient refused = broker.connect();
  REQUIRE(refused.hello().header.status == CUDA_SUCCESS);
  CHECK(refused.ask<proto::Attached>(proto::Attach{}).header.status == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
}

TEST_CASE("a client that is gone takes nobody's place while its session ends, but such sessions have a limit too") {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.max_clients = 1;
  ControlFixture broker(limits);
  broker.serve();
  const auto end_without_the_executor = [&](TestClient client) {
    client.hang_up();
    broker.executor().expect<message::SessionClose>();
  };
  end_without_the_executor(broker.attach());
  end_without_the_executor(broker.attach());
  REQUIRE(broker.manager.sessions().size() == 2);
  TestClient refused = broker.connect();
  REQUIRE(refused.hello().header.status == CUDA_SUCCESS);
  CHECK(refused.ask<proto::Attached>(proto::Attach{}).header.status == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
}

TEST_CASE("malformed messages end their sender alone") {
  ControlFixture broker;
  broker.serve();
  TestClient bystander = broker.attach();
  const auto ends = [&](auto&& misbehave, bool greeted = true) {
    TestClient client = broker.connect();
    if (greeted) REQUIRE(client.hello().header.status == CUDA_SUCCESS);
    misbehave(client);
    CHECK(client.is_closed());
  };
  ends([](TestClient& client) { client.send_bytes(3); });
  ends([](TestClient& client) { client.send_bytes(4097); });
  ends([](TestClient& client) { client.send_bytes(32); });  // no magic
  ends([](TestClient& client) { client.send(proto::Attach{}); }, false);
  ends([](TestClient& client) { client.send(proto::Hello{}); });
  ends([](TestClient& client) { client.send(proto::Welcome{}); });
  ends([](TestClient& client) {
    proto::MessageHeader header{.type = static_cast<proto::MessageType>(77)};
    client.send(header);
  });
  ends([](TestClient& client) {
    struct {
      proto::Attach attach;
      std::uint64_t more = 0;
    } longer;
    client.send(longer);
  });
  ends([](TestClient& client) {
    proto::MessageHeader header{.type = proto::MessageType::attach};
    client.send(header);
  });
  ends([](TestClient& client) {
    const std::array<int, 2> fds{0, 1};
    client.send(proto::Attach{}, fds);
  });
  const auto created = [&] {
    proto::SegmentCreate request;
    request.purpose = proto::SegmentPurpose::staging;
    request.size_bytes = 4096;
    return bystander.ask<proto::SegmentCreated>(request);
  }();
  CHECK(created.header.status == CUDA_SUCCESS);
}

TEST_CASE("drivers are tried in order, the one that serves is kept") {
  ControlFixture broker(ControlFixture::quick_limits(), {"first.so", "second.so", "third.so"});
  CHECK(broker.executor().options.driver_path == "first.so");
  broker.executor().ready(CUDA_ERROR_NO_DEVICE);
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  CHECK(broker.launcher.lives[0]->killed);
  CHECK(broker.executor().options.driver_path == "second.so");
  broker.executor().die();  // a crash before it is ready counts as a refusal
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));
  broker.executor().ready();
  REQUIRE(turn_until(broker.loop, [&] { return broker.manager.facts_file() >= 0; }));
  broker.executor().die();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 4; }));
  CHECK(broker.executor().options.driver_path == "third.so");
}

TEST_CASE("no driver serves: said so, once, with the last reason") {
  ControlFixture broker;
  broker.executor().ready(CUDA_ERROR_NO_DEVICE);
  REQUIRE(turn_until(broker.loop, [&] { return !broker.cannot_start.empty(); }));
  CHECK(broker.cannot_start.find("libtest.so") != std::string::npos);
  CHECK(broker.cannot_start.find("100") != std::string::npos);
}

TEST_CASE("attach: what a client asks for itself is told, and goes to the executor with what operators have set") {
  struct Case {
    std::uint32_t asked_percentage, asked_priority;
    std::uint32_t percentage, priority;
  };
  ControlFixture broker;
  broker.serve();
  broker.manager.thread_percentages().set({}, 5'000);
  broker.manager.default_client_priority() = 1;
  std::deque<TestClient> clients;
  for (const Case& one : {Case{2'500, 1, 2'500, 0}, Case{7'500, 2, 5'000, 1}, Case{10'001, 4, 5'000, 1}}) {
    TestClient& client = clients.emplace_back(broker.connect());
    REQUIRE(client.hello().header.status == CUDA_SUCCESS);
    proto::ProvisionAsk ask;
    ask.thread_percentage = one.asked_percentage;
    ask.client_priority = one.asked_priority;
    const auto told = client.ask<proto::ProvisionTold>(ask);
    CHECK(told.thread_percentage[0] == one.percentage);
    client.send(proto::Attach{});
    const auto open = broker.executor().expect<message::SessionOpen>();
    CHECK(open.message.thread_percentage == one.percentage);
    CHECK(open.message.client_priority == one.priority);
    broker.executor().send(message::SessionOpened{.session = open.message.session});
    CHECK(client.await<proto::Attached>().thread_percentage == one.percentage);
  }
  broker.manager.thread_percentages().set_default(2'000);
  TestClient old = broker.connect();  // of a library that does not ask
  REQUIRE(old.hello().header.status == CUDA_SUCCESS);
  old.send(proto::Attach{});
  const auto open = broker.executor().expect<message::SessionOpen>();
  CHECK(open.message.thread_percentage == 5'000);
  CHECK(open.message.client_priority == 1);
}
