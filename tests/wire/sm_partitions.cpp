// SPDX-License-Identifier: Apache-2.0
// Sessions with a static partition on a real worker thread: those of one share its green context, nothing of them runs elsewhere, and chunks that the
// device does not have are no partition.
#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

struct Partitioned {
  WireExecutor executor;
  std::vector<std::unique_ptr<WireClient>> clients;
  FakeFunction function{"f", {8}};
  std::atomic<unsigned> closed{0};

  Partitioned() { executor.start_workers(); }
  ~Partitioned() {
    for (std::uint64_t session = 1; session <= clients.size(); ++session) end(session);
    executor.workers.reset();
  }
  WireClient& open(std::uint64_t chunks) {
    clients.push_back(std::make_unique<WireClient>(executor, clients.size() + 1, 0, chunks));
    executor.workers->add(clients.back()->shared_session());
    return *clients.back();
  }
  // The client holds its session as well.
  void end(std::uint64_t session) {
    if (clients[session - 1] == nullptr) return;
    const unsigned before = closed;
    executor.workers->close(session, [this] { ++closed; });
    (void)eventually([&] { return closed > before; });
    clients[session - 1].reset();
  }
  // Where launches in the NULL stream and in another one went.
  std::set<CUcontext> contexts_of(WireClient& client, std::uint32_t fence) {
    const proto::FunctionId id = client.add_function(function);
    const auto stream = proto::StreamId::make(1, 1);
    client.add_stream(1);
    executor.fake.forget_calls();
    for (const proto::StreamId at : {proto::kNullStream, stream}) {
      client.post_launch(id, 7, at);
      client.post_fence(fence, at);
    }
    REQUIRE(eventually([&] { return client.fence(0) == fence && client.fence(1) == fence; }));
    std::set<CUcontext> contexts;
    for (const FakeCall& call : executor.fake.calls(FakeCall::launch)) contexts.insert(call.stream_context);
    return contexts;
  }
};

}  // namespace

TEST_CASE("sessions of a static partition run in its green context, those of another in another, and it ends with the last of them") {
  Partitioned f;  // sixteen multiprocessors, of which the driver makes eight parts
  const std::set<CUcontext> first = f.contexts_of(f.open(0b0000'0101), 1);
  REQUIRE(first.size() == 1);
  CHECK(*first.begin() != nullptr);
  CHECK(f.executor.fake.greens == 1);
  const std::set<CUcontext> other = f.contexts_of(f.open(0b1000'0010), 1);
  REQUIRE(other.size() == 1);
  CHECK(other != first);
  CHECK(f.executor.fake.greens == 2);
  CHECK(f.contexts_of(f.open(0b0000'0101), 1) == first);
  CHECK(f.executor.fake.greens == 2);
  f.end(2);
  CHECK(eventually([&] { return f.executor.fake.greens == 1; }));
}

TEST_CASE("a session whose chunks the device does not have is not served, and runs nothing") {
  // Of eight, which leave nothing over.
  for (const std::uint64_t beyond : {std::uint64_t{1} << 8, std::uint64_t{1} << 63, std::uint64_t{1} << 63 | 1, std::uint64_t{0b1'0000'0001}}) {
    Partitioned f;
    WireClient& client = f.open(beyond);
    const proto::FunctionId id = client.add_function(f.function);
    client.post_launch(id, 7, proto::kNullStream);
    client.post_fence(1);
    CHECK(eventually([&] { return client.has_failed(); }));
    CHECK(f.executor.fake.calls(FakeCall::launch).empty());
    CHECK(f.executor.fake.greens == 0);
  }
}

}  // namespace mpsshim::test
