// SPDX-License-Identifier: Apache-2.0
// Whole sessions on a real worker thread: waking, sleeping, windows, closing.
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include <sys/eventfd.h>
#include <unistd.h>

#include "proto/futex.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

// Launches that are out when credit is used up: a progress write behind each at worst, since the client writes its records one by one.
constexpr std::size_t kCreditAtLeast = broker::kCredit / 2 - 10;

struct Fixture {
  WireExecutor executor;
  WireClient client{executor};
  FakeFunction function{"f", {8}};
  proto::FunctionId id = client.add_function(function);

  // A check that fails leaves the test early: the worker must be gone before its session.
  ~Fixture() {
    executor.fake.resume_work();
    executor.workers.reset();
  }
  void start(WireClient* other = nullptr) {
    executor.start_workers();
    executor.workers->add(client.shared_session());
    if (other != nullptr) executor.workers->add(other->shared_session());
  }
  // The table says that somebody's records were taken and not all issued.
  bool holds_records() {
    for (std::uint32_t i = 0; i < executor.parts->progress.used(); ++i) {
      if (executor.parts->progress[i].held.load() != 0) return true;
    }
    return false;
  }
  // Takes every session down, as the control process does before an executor is let go.
  void close(std::uint64_t session = 1) {
    std::atomic<bool> closed{false};
    executor.workers->close(session, [&] { closed = true; });
    REQUIRE(eventually([&] { return closed.load(); }));
  }
};

}  // namespace

TEST_CASE("records are executed, and the doorbell wakes a sleeping worker") {
  Fixture f;
  f.start();
  for (std::uint32_t i = 1; i <= 5; ++i) {
    // Asleep: the mark is set and nothing was there.
    REQUIRE(eventually([&] { return f.client.channel().header().consumer_idle.load() == 1; }));
    usleep(2'000);
    f.client.post_launch(f.id, i);
    f.client.post_fence(i);
    CHECK(eventually([&] { return f.client.fence() == i; }));
  }
  CHECK(f.executor.fake.calls(FakeCall::launch).size() == 5);
  f.close();
}

TEST_CASE("many records of two sessions all arrive, in order") {
  Fixture f;
  WireClient other(f.executor, 2);
  const proto::FunctionId other_id = other.add_function(f.function);
  f.start(&other);
  constexpr std::uint64_t kLaunches = 3'000;
  for (std::uint64_t i = 0; i < kLaunches; ++i) {
    f.client.post_launch(f.id, i);
    other.post_launch(other_id, i + 1'000'000);
    if (i % 500 == 499) usleep(1'000);
  }
  f.client.post_fence(1);
  other.post_fence(1);
  REQUIRE(eventually([&] { return f.client.fence() == 1 && other.fence() == 1; }));
  std::uint64_t next[2] = {0, 1'000'000};
  for (const FakeCall& call : f.executor.fake.calls(FakeCall::launch)) {
    std::uint64_t argument = 0;
    std::memcpy(&argument, call.parameters.data(), 8);
    CHECK(argument == next[argument >= 1'000'000]++);
  }
  CHECK(next[0] == kLaunches);
  CHECK(next[1] == 1'000'000 + kLaunches);
  f.close();
  f.close(2);
}

TEST_CASE("progress is written when the ring stays dry, without any fence") {
  Fixture f;
  f.start();
  f.client.post_launch(f.id, 1);
  CHECK(eventually([&] { return f.executor.progress->stream[0].completed.load() == 1; }));
  f.close();
}

TEST_CASE("a session without credit goes on by itself when the GPU does") {
  Fixture f;
  f.executor.parts->nop_function = nullptr;
  f.executor.fake.hold_work();
  f.start();
  for (std::uint64_t i = 0; i < 2'000; ++i) f.client.post_launch(f.id, i);
  f.client.post_fence(1);
  REQUIRE(eventually([&] { return f.executor.fake.calls(FakeCall::launch).size() >= kCreditAtLeast; }));
  usleep(20'000);
  CHECK(f.executor.fake.calls(FakeCall::launch).size() <= broker::kCredit);
  f.executor.fake.resume_work();
  CHECK(eventually([&] { return f.client.fence() == 1; }));
  f.close();
}

TEST_CASE("a window opens beside a busy session, and its launch is made in it") {
  Fixture f;
  const proto::FunctionId big = f.client.add_function(f.function, 1024);
  f.start();
  for (std::uint64_t i = 0; i < 100; ++i) f.client.post_launch(i == 50 ? big : f.id, i);
  f.client.post_fence(1);
  REQUIRE(eventually([&] { return f.client.fence() == 1; }));
  const auto launches = f.executor.fake.calls(FakeCall::launch);
  REQUIRE(launches.size() == 100);
  for (std::uint64_t i = 0; i < 100; ++i) CHECK(std::memcmp(launches[i].parameters.data(), &i, 8) == 0);
  f.close();
}

TEST_CASE("a quiet window runs while launches keep coming, and nothing is in flight in it") {
  Fixture f;
  f.start();
  std::atomic<int> windows{0};
  std::atomic<bool> was_busy{false};
  std::uint64_t launched = 0;
  for (int round = 0; round < 50; ++round) {
    f.executor.window->submit({"a test's job", 1, false, [&](broker::WindowResult result) {
                                 if (result != broker::WindowResult::open) return;
                                 if (f.executor.parts->progress.is_busy(0)) was_busy = true;
                                 ++windows;
                               }});
    for (int i = 0; i < 20; ++i) f.client.post_launch(f.id, launched++);
  }
  f.client.post_fence(1);
  CHECK(eventually([&] { return windows == 50 && f.client.fence() == 1; }));
  CHECK_FALSE(was_busy);
  CHECK(f.executor.fake.calls(FakeCall::launch).size() == launched);
  f.close();
}

TEST_CASE("closing waits for work in flight, drops what is queued, and gives streams back") {
  Fixture f;
  f.executor.parts->nop_function = nullptr;
  f.executor.fake.hold_work();
  f.start();
  for (std::uint64_t i = 0; i < 1'500; ++i) f.client.post_launch(f.id, i);
  REQUIRE(eventually([&] { return f.executor.fake.calls(FakeCall::launch).size() >= kCreditAtLeast; }));
  std::atomic<bool> closed{false};
  f.executor.workers->close(1, [&] { closed = true; });
  usleep(20'000);
  CHECK_FALSE(closed);
  f.executor.fake.resume_work();
  CHECK(eventually([&] { return closed.load(); }));
  CHECK(f.executor.fake.calls(FakeCall::launch).size() <= broker::kCredit);
  CHECK(f.executor.progress->stream[0].session.load() == 0);
}

TEST_CASE("external memory is refused once it is given up, and ends when the work that uses it has") {
  Fixture f;
  constexpr std::uint64_t kBytes = 64 << 10;
  const proto::ExternalMemoryId memory = f.client.add_external(1, kBytes);
  const std::uint64_t buffer = f.client.map_external(memory, kBytes);
  const proto::FillRecord fill{buffer, 0, kBytes, 1, 7, 1};
  f.start();
  f.executor.fake.hold_work();
  f.client.post(fill);
  f.client.post(proto::ExternalReleaseRecord{memory});
  f.client.post(fill);
  f.client.post(proto::ExternalUnmapRecord{buffer});
  REQUIRE(eventually([&] { return f.executor.fake.calls(FakeCall::fill).size() == 2; }));
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
  f.client.post(fill);
  CUresult error = CUDA_SUCCESS;
  CHECK(eventually([&] { return (error = f.client.take_async_error()) != CUDA_SUCCESS; }));
  CHECK(error == CUDA_ERROR_INVALID_VALUE);
  CHECK(f.executor.fake.calls(FakeCall::fill).size() == 2);
  CHECK(f.executor.fake.buffers == 1);  // in use
  CHECK(f.executor.fake.externals == 1);
  f.executor.fake.resume_work();
  CHECK(eventually([&] { return f.executor.fake.buffers == 0 && f.executor.fake.externals == 0; }));
  f.close();
}

TEST_CASE("external memory ends with its session") {
  Fixture f;
  constexpr std::uint64_t kBytes = 64 << 10;
  const proto::ExternalMemoryId memory = f.client.add_external(1, kBytes);
  (void)f.client.map_external(memory, kBytes);
  (void)f.client.map_external(memory, kBytes / 2);
  f.start();
  f.close();
  CHECK(f.executor.fake.buffers == 0);
  CHECK(eventually([&] { return f.executor.fake.externals == 0; }));
}

TEST_CASE("closing an unknown session answers at once") {
  Fixture f;
  f.start();
  bool closed = false;
  f.executor.workers->close(77, [&] { closed = true; });
  CHECK(closed);
  f.close();
}

TEST_CASE("a session that broke the protocol is closed like any other") {
  Fixture f;
  f.start();
  f.client.post_raw({24, 0x7777, proto::kNoReplySlot, 0, 0, proto::kNullStream}, {});
  CHECK(eventually([&] { return f.client.has_failed(); }));
  f.close();
}

TEST_CASE("the completion thread wakes a client that sleeps on a fence") {
  Fixture f;
  f.executor.fake.hold_work();
  f.start();
  proto::FenceWaiter& waiter = f.client.channel().waiters()[3];
  waiter.fence = 0;
  waiter.target = 1;
  waiter.state.store(proto::FenceWaiter::armed);
  eventfd_write(f.client.channel().completion_doorbell(), 1);
  f.client.post_launch(f.id, 1);
  f.client.post_fence(1);
  usleep(5'000);
  CHECK(waiter.state.load() == proto::FenceWaiter::armed);
  f.executor.fake.resume_work();
  for (int i = 0; i < 200 && waiter.state.load() != proto::FenceWaiter::fired; ++i) {
    proto::futex_wait(waiter.state, proto::FenceWaiter::armed, 50'000);
  }
  CHECK(waiter.state.load() == proto::FenceWaiter::fired);

  SECTION("a fence beyond the segment wakes at once instead of being read") {
    proto::FenceWaiter& bad = f.client.channel().waiters()[4];
    bad.fence = 0xffff'ffff;
    bad.target = 1;
    bad.state.store(proto::FenceWaiter::armed);
    eventfd_write(f.client.channel().completion_doorbell(), 1);
    CHECK(eventually([&] { return bad.state.load() == proto::FenceWaiter::fired; }));
  }
  f.close();
}

TEST_CASE("the words of a session that goes with records taken and not issued hold nothing for who has them next") {
  Fixture f;
  f.start();
  f.executor.fake.hold_work();
  for (std::uint32_t i = 1; i <= broker::kCredit + 100; ++i) {
    f.client.post_launch(f.id, i);
    f.client.post_fence(i);  // cuts the chain
  }
  REQUIRE(eventually([&] { return f.holds_records(); }));
  std::atomic<bool> closed{false};
  f.executor.workers->close(1, [&] { closed = true; });
  f.executor.fake.resume_work();
  REQUIRE(eventually([&] { return closed.load(); }));
  CHECK_FALSE(f.holds_records());
}

TEST_CASE("a launch that waits for a window is held until the driver has it") {
  Fixture f;
  const proto::FunctionId big = f.client.add_function(f.function, 4096);
  WireClient other(f.executor, 2);
  other.add_chunk(1 << 20);
  const proto::FunctionId id = other.add_function(f.function);
  f.start(&other);
  f.executor.fake.hold_work();
  other.post_launch(id, 0);
  REQUIRE(eventually([&] { return f.executor.fake.calls(FakeCall::launch).size() == 1; }));
  REQUIRE(eventually([&] { return !f.holds_records(); }));
  f.client.post_launch(f.id, 1);
  f.client.post_launch(big, 2);
  REQUIRE(eventually([&] { return f.executor.fake.calls(FakeCall::launch).size() == 2; }));
  usleep(20'000);
  CHECK(f.holds_records());
  CHECK(f.executor.fake.calls(FakeCall::launch).size() == 2);
  f.executor.fake.resume_work();
  CHECK(eventually([&] { return f.executor.fake.calls(FakeCall::launch).size() == 3; }));
  CHECK(eventually([&] { return !f.holds_records(); }));
  f.close(1);
  f.close(2);
}

// NVIDIA's driver does not keep the two apart: see QuietWindow::exclusively().
TEST_CASE("a function is changed, and asked about, while no other worker puts it into a graph") {
  constexpr int kQuestions = 2000;
  WireExecutor executor;
  FakeFunction function{"f", {8}};
  WireClient launching(executor, 1), asking(executor, 2);  // the second is served by this thread
  const proto::FunctionId launched = launching.add_function(function);
  const proto::FunctionId asked = asking.add_function(function);
  executor.start_workers();
  executor.workers->add(launching.shared_session());
  std::atomic<bool> stop{false};
  std::thread flood([&] {
    for (std::uint64_t argument = 1; !stop; ++argument) {
      if (launching.has_room()) launching.post_launch(launched, argument);
    }
  });
  for (int i = 0; i < kQuestions; ++i) {
    if (i % 2 == 0)
      asking.call(proto::FunctionSetAttributeRecord{asked, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1000 + i});
    else
      asking.call(proto::OccupancyRecord{asked, proto::OccupancyQuestion::active_blocks, 32, 0, 0, 0});
    (void)asking.turn();
    CHECK(asking.is_answered(0));
  }
  stop = true;
  flood.join();
  CHECK(executor.fake.function_conflicts == 0);
  std::atomic<bool> closed{false};
  executor.workers->close(1, [&] { closed = true; });
  CHECK(eventually([&] { return closed.load(); }));
  executor.workers.reset();
}

}  // namespace mpsshim::test
