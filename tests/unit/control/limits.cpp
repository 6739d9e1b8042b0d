// SPDX-License-Identifier: Apache-2.0
// What one client may have, and all of them together: at the limit and one past it.
#include <unistd.h>

#include "broker/control/base/complaints.hpp"
#include "broker/control/server/commands.hpp"
#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

SessionLimits few() {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.resources.client_descriptors = 3;
  limits.resources.all_descriptors = 5;
  limits.resources.client_host_bytes = 1 << 20;
  limits.resources.all_host_bytes = 3 << 19;
  limits.resources.process_sessions = 2;
  limits.resources.further_leases = 1;
  return limits;
}

CUresult ask_for_segment(TestClient& client, std::uint64_t bytes) {
  proto::SegmentCreate request;
  request.purpose = proto::SegmentPurpose::staging;
  request.size_bytes = bytes;
  return static_cast<CUresult>(client.ask<proto::SegmentCreated>(request).header.status);
}

CUresult ask_for_image(TestClient& client, std::uint64_t bytes) {
  proto::ImageOpen request;
  request.size_bytes = bytes;
  return static_cast<CUresult>(client.ask<proto::ImageOpened>(request).header.status);
}

}  // namespace

TEST_CASE("a client's segments and images share its descriptors, all clients' theirs") {
  ControlFixture broker(few());
  broker.serve();
  TestClient first = broker.attach();
  TestClient second = broker.attach();
  CHECK(ask_for_segment(first, 4096) == CUDA_SUCCESS);
  CHECK(ask_for_segment(first, 4096) == CUDA_SUCCESS);
  CHECK(ask_for_image(first, 100) == CUDA_SUCCESS);
  CHECK(ask_for_segment(first, 4096) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(ask_for_image(first, 100) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(ask_for_segment(second, 4096) == CUDA_SUCCESS);
  CHECK(ask_for_image(second, 100) == CUDA_SUCCESS);
  CHECK(ask_for_segment(second, 4096) == CUDA_ERROR_OUT_OF_MEMORY);  // the third of its own, the sixth of all
}

TEST_CASE("a client's host memory is limited, and all clients'") {
  ControlFixture broker(few());
  broker.serve();
  TestClient first = broker.attach();
  TestClient second = broker.attach();
  CHECK(ask_for_segment(first, UINT64_MAX / 4096 * 4096) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(ask_for_segment(first, 1 << 19) == CUDA_SUCCESS);
  CHECK(ask_for_image(first, (1 << 19) + 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(ask_for_image(first, 1 << 19) == CUDA_SUCCESS);
  CHECK(ask_for_image(first, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(ask_for_segment(second, 1 << 20) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(ask_for_segment(second, 1 << 19) == CUDA_SUCCESS);
}

TEST_CASE("a user's clients share what a user may have, another user's are served") {
  SessionLimits limits = few();
  limits.serves_all_users = limits.shares_executors = true;
  limits.resources.process_sessions = 10;  // all are this process
  limits.resources.user = {.sessions = 2, .connections = 0, .descriptors = 3, .host_bytes = 1 << 20};
  ControlFixture broker(limits);
  broker.serve();
  TestClient first = broker.attach();
  TestClient second = broker.attach();
  TestClient third = broker.connect();
  REQUIRE(third.hello().header.status == CUDA_SUCCESS);
  CHECK(third.ask<proto::Attached>(proto::Attach{}).header.status == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
  CHECK(ask_for_segment(first, 1 << 19) == CUDA_SUCCESS);
  CHECK(ask_for_image(second, (1 << 19) + 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(ask_for_image(second, 1 << 18) == CUDA_SUCCESS);
  CHECK(ask_for_segment(second, 4096) == CUDA_SUCCESS);
  CHECK(ask_for_segment(first, 4096) == CUDA_ERROR_OUT_OF_MEMORY);  // the third of its own, the fourth of its user
  std::string table;
  Commands(broker.manager, nullptr).execute("users", [&](const Commands::Result& result) { table = result.text; });
  CHECK(table.find(" 2/2 ") != std::string::npos);
  CHECK(table.find(" 0/1\n") != std::string::npos);
  for (int i = 0; i < 2; ++i) (void)broker.executor().expect<message::SegmentAdd>();
  if (geteuid() == 0) {  // who else could connect as another user?
    TestClient other = broker.connect(1001);
    REQUIRE(other.hello().header.status == CUDA_SUCCESS);
    other.send(proto::Attach{});
    broker.executor().open_session();
    REQUIRE(other.await<proto::Attached>().header.status == CUDA_SUCCESS);
    CHECK(ask_for_segment(other, 1 << 18) == CUDA_SUCCESS);
  }
}

TEST_CASE("what several users have is half of what all have, unless it is said otherwise") {
  ResourceLimits limits;
  limits.connections = 100;
  limits.all_descriptors = 1'000;
  limits.all_host_bytes = 1ull << 40;
  limits.user.sessions = 7;
  share_among_users(limits, 50);
  CHECK(limits.user.sessions == 7);
  CHECK(limits.user.connections == 50);
  CHECK(limits.user.descriptors == 500);
  CHECK(limits.user.host_bytes == 1ull << 39);
}

TEST_CASE("what a client lets go of, it may have again") {
  ControlFixture broker(few());
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  proto::SegmentCreate request;
  request.purpose = proto::SegmentPurpose::staging;
  request.size_bytes = 1 << 20;
  const auto created = client.ask<proto::SegmentCreated>(request);
  REQUIRE(created.header.status == CUDA_SUCCESS);
  CHECK(ask_for_segment(client, 4096) == CUDA_ERROR_OUT_OF_MEMORY);
  broker.executor().send(message::SegmentReleased{.session = attached.session, .segment = created.segment});
  turn_for(broker.loop, 10);
  CHECK(ask_for_segment(client, 1 << 20) == CUDA_SUCCESS);
}

TEST_CASE("a process has so many sessions, those that are being taken down included") {
  ControlFixture broker(few());
  broker.serve();
  TestClient first = broker.attach();
  TestClient second = broker.attach();
  TestClient third = broker.connect();
  REQUIRE(third.hello().header.status == CUDA_SUCCESS);
  CHECK(third.ask<proto::Attached>(proto::Attach{}).header.status == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
  first.hang_up();
  const std::uint64_t closed = broker.executor().expect<message::SessionClose>().message.session;
  CHECK(third.ask<proto::Attached>(proto::Attach{}).header.status == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
  broker.executor().send(message::SessionClosed{.session = closed});
  REQUIRE(turn_until(broker.loop, [&] { return !broker.has_session(closed); }));
  third.send(proto::Attach{});
  broker.executor().open_session();
  CHECK(third.await<proto::Attached>().header.status == CUDA_SUCCESS);
}

TEST_CASE("a session gets so many further ranges of addresses") {
  ControlFixture broker(few());
  broker.executor().ready(CUDA_SUCCESS, 141ull << 30);
  REQUIRE(turn_until(broker.loop, [&] { return broker.manager.facts_file() >= 0; }));
  TestClient client = broker.attach();
  proto::LeaseAdd request;
  request.size_bytes = 1;
  CHECK(client.ask<proto::LeaseAdded>(request).header.status == CUDA_SUCCESS);
  CHECK(client.ask<proto::LeaseAdded>(request).header.status == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("complaints: the first ones, then one a second, and how many were left out") {
  ComplaintBudget budget;
  auto now = ComplaintBudget::Clock::now();
  std::uint64_t written = 0;
  for (std::uint64_t i = 0; i < 3 * ComplaintBudget::kBurst; ++i) written += budget.take(now) ? 1 : 0;
  CHECK(written == ComplaintBudget::kBurst);
  CHECK(budget.take_left_out() == 2 * ComplaintBudget::kBurst);
  now += std::chrono::seconds(2);
  CHECK(budget.take(now));
  CHECK(budget.take(now));
  CHECK_FALSE(budget.take(now));
  now += std::chrono::hours(1);
  written = 0;
  for (std::uint64_t i = 0; i < 3 * ComplaintBudget::kBurst; ++i) written += budget.take(now) ? 1 : 0;
  CHECK(written == ComplaintBudget::kBurst);
}
