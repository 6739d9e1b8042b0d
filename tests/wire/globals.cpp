// SPDX-License-Identifier: Apache-2.0
// Variables of modules: a session's own from the look-up to the unload, and no longer. Afterwards the copy is another client's.
#include <atomic>

#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

constexpr std::uint64_t kVariable = 0x5'0000'0000;
constexpr std::uint64_t kBytes = 4096;

struct Fixture {
  WireExecutor executor;
  WireClient client{executor};
  proto::ModuleId module;
  std::uint64_t chunk = client.add_chunk(2u << 20);

  explicit Fixture(bool is_shared = false) : module(client.add_module(1, kVariable, kBytes, is_shared)) {
    executor.start_workers();
    executor.workers->add(client.shared_session());
  }
  // The worker must be gone before its session.
  ~Fixture() {
    executor.fake.resume_work();
    std::atomic<bool> is_closed{false};
    executor.workers->close(1, [&] { is_closed = true; });
    CHECK(eventually([&] { return is_closed.load(); }));
    executor.workers.reset();
  }
  void look_up() {
    client.post_lookup(module, 0);
    REQUIRE(eventually([&] { return client.is_answered(0); }));
    REQUIRE(client.status(0) == CUDA_SUCCESS);
    CHECK(client.body<proto::GlobalLookupReply>(0).address == kVariable);
  }
  bool is_given_back() { return !executor.fake.oracle.has_variable(kVariable); }  // the copy may be another client's
  void post_copy(std::uint64_t destination, std::uint64_t source) {
    proto::CopyRecord copy{};
    copy.destination = destination;
    copy.source = source;
    copy.size_bytes = 64;
    client.post(copy);
  }
  void unload() { client.post(proto::ModuleUnloadRecord{module}); }
  std::size_t copies() { return executor.fake.calls(FakeCall::copy).size(); }
};

}  // namespace

TEST_CASE("a variable is the session's own until its module is unloaded") {
  Fixture f;
  f.post_copy(kVariable, f.chunk);  // nobody has looked it up
  CHECK(eventually([&] { return f.client.take_async_error() == CUDA_ERROR_INVALID_VALUE; }));
  f.look_up();
  f.post_copy(kVariable, f.chunk);
  f.post_copy(f.chunk, kVariable);
  CHECK(eventually([&] { return f.copies() == 2; }));
  f.unload();
  CHECK(eventually([&] { return f.is_given_back(); }));
  f.post_copy(f.chunk, kVariable);
  CHECK(eventually([&] { return f.client.take_async_error() == CUDA_ERROR_INVALID_VALUE; }));
  f.post_copy(kVariable, f.chunk);
  CHECK(eventually([&] { return f.client.take_async_error() == CUDA_ERROR_INVALID_VALUE; }));
  CHECK(f.copies() == 2);
  CHECK_FALSE(f.client.has_failed());
}

TEST_CASE("the copy is nobody else's before the work that was queued has ended") {
  Fixture f;
  f.look_up();
  f.executor.fake.hold_work();
  f.post_copy(kVariable, f.chunk);
  f.unload();
  CHECK(eventually([&] { return f.copies() == 1; }));
  SECTION("of a session that goes on") {
    f.post_copy(kVariable, f.chunk);  // refused at once
    CHECK(eventually([&] { return f.client.take_async_error() == CUDA_ERROR_INVALID_VALUE; }));
    usleep(50'000);
    CHECK_FALSE(f.is_given_back());
    f.executor.fake.resume_work();
    CHECK(eventually([&] { return f.is_given_back(); }));
  }
  SECTION("of one that fails meanwhile") {
    f.client.post(proto::ModuleUnloadRecord{proto::ModuleId{~0ull}});
    CHECK(eventually([&] { return f.client.has_failed(); }));
    usleep(50'000);
    CHECK_FALSE(f.is_given_back());
  }
  CHECK(f.copies() == 1);
}

TEST_CASE("a look-up that comes back after the unload finds nothing") {
  Fixture f;
  std::atomic<bool> may_go_on{false};
  f.executor.helpers->submit(1, [&] {  // jobs of this session wait for that one
    while (!may_go_on) usleep(1'000);
  });
  f.client.post_lookup(f.module, 0);
  f.unload();
  CHECK(eventually([&] { return f.is_given_back(); }));
  may_go_on = true;
  REQUIRE(eventually([&] { return f.client.is_answered(0); }));
  CHECK(f.client.status(0) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(f.client.body<proto::GlobalLookupReply>(0).address == 0);
  f.post_copy(kVariable, f.chunk);
  CHECK(eventually([&] { return f.client.take_async_error() == CUDA_ERROR_INVALID_VALUE; }));
  CHECK(f.copies() == 0);
}

TEST_CASE("in a copy that others run as well nothing is a client's own") {
  Fixture f(true);
  f.look_up();
  f.post_copy(kVariable, f.chunk);
  CHECK(eventually([&] { return f.client.take_async_error() == CUDA_ERROR_INVALID_VALUE; }));
  CHECK(f.copies() == 0);
}

}  // namespace mpsshim::test
