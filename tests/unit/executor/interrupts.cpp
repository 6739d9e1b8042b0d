// SPDX-License-Identifier: Apache-2.0
// A driver whose events come when the test says so.
#include "broker/executor/base/interrupts.hpp"

#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/catch.hpp"

namespace mpsshim::broker {
namespace {

std::atomic<int> created{0};
std::atomic<int> recorded{0};
std::atomic<int> asleep{0};
std::atomic<int> due{0};  // events that may come
std::atomic<CUresult> record_result{CUDA_SUCCESS};

CUresult CUDAAPI create(CUevent* event, unsigned flags) {
  REQUIRE((flags & CU_EVENT_BLOCKING_SYNC) != 0);
  return ++created, *event = reinterpret_cast<CUevent>(16), CUDA_SUCCESS;
}
CUresult CUDAAPI record(CUevent, CUstream) { return ++recorded, record_result.load(); }
CUresult CUDAAPI synchronize(CUevent) {
  ++asleep;
  for (int left = due;;) {
    if (left > 0 && due.compare_exchange_strong(left, left - 1)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    left = due;
  }
  return --asleep, CUDA_SUCCESS;
}
CUresult CUDAAPI set_current(CUcontext) { return CUDA_SUCCESS; }

template <typename Condition>
bool becomes(Condition condition) {
  for (int i = 0; i < 5'000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

struct Fixture {
  ~Fixture() {
    due = 1'000;  // sleepers that are left end
    (void)becomes([] { return asleep == 0; });
  }
  CUresult ask(std::uint64_t session) const { return interrupts->ask(session, reinterpret_cast<CUstream>(16)); }

  std::unique_ptr<Driver> driver = [] {
    created = recorded = asleep = due = 0;
    record_result = CUDA_SUCCESS;
    DriverTable table;
    table.cuEventCreate = create;
    table.cuEventRecord = record;
    table.cuEventSynchronize = synchronize;
    table.cuCtxSetCurrent = set_current;
    return Driver::from_table(table);
  }();
  std::atomic<std::uint64_t> ended{0};  // the session told last
  std::unique_ptr<Interrupts> interrupts = std::make_unique<Interrupts>(*driver, nullptr, [this](std::uint64_t session) { ended = session; });
};

}  // namespace

TEST_CASE("interrupts: a session is told of when its event has come, not before") {
  Fixture f;
  REQUIRE(f.ask(1) == CUDA_SUCCESS);
  REQUIRE(becomes([] { return asleep == 1; }));
  CHECK(f.ended == 0);
  due = 1;
  CHECK(becomes([&] { return f.ended == 1; }));
  REQUIRE(becomes([&] { return f.ask(1) == CUDA_SUCCESS && recorded == 2; }));  // the sleeper serves again
}

TEST_CASE("interrupts: a session has one sleeper, and all together as many as there are") {
  Fixture f;
  REQUIRE(f.ask(1) == CUDA_SUCCESS);
  REQUIRE(f.ask(1) == CUDA_SUCCESS);
  CHECK(recorded == 1);
  for (std::uint64_t session = 2; session < 2 + 2 * Interrupts::kSleepers; ++session) REQUIRE(f.ask(session) == CUDA_SUCCESS);
  CHECK(recorded == static_cast<int>(Interrupts::kSleepers));
}

TEST_CASE("interrupts: all threads and events are there before the first wait, and remain as many") {
  const Fixture f;
  CHECK(created == static_cast<int>(Interrupts::kSleepers));
  const auto threads = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator()); };
  const auto before = threads();
  REQUIRE(f.ask(1) == CUDA_SUCCESS);
  REQUIRE(becomes([] { return asleep == 1; }));
  CHECK(threads() == before);
  CHECK(created == static_cast<int>(Interrupts::kSleepers));
}

TEST_CASE("interrupts: warming up has each sleeper sleep once, and all are free afterwards") {
  Fixture f;
  int asleep_at_release = 0;
  f.interrupts->warm_up(reinterpret_cast<CUstream>(16), [&] {
    (void)becomes([] { return asleep == static_cast<int>(Interrupts::kSleepers); });
    asleep_at_release = asleep;
    due = static_cast<int>(Interrupts::kSleepers);
  });
  CHECK(asleep_at_release == static_cast<int>(Interrupts::kSleepers));
  CHECK(asleep == 0);
  for (std::uint64_t session = 1; session <= Interrupts::kSleepers; ++session) REQUIRE(f.ask(session) == CUDA_SUCCESS);
  CHECK(recorded == 2 * static_cast<int>(Interrupts::kSleepers));
}

TEST_CASE("interrupts: a record that is refused wakes nobody") {
  Fixture f;
  record_result = CUDA_ERROR_INVALID_HANDLE;
  CHECK(f.ask(1) == CUDA_ERROR_INVALID_HANDLE);
  record_result = CUDA_SUCCESS;
  CHECK(f.ask(1) == CUDA_SUCCESS);
  CHECK(becomes([] { return asleep == 1; }));
}

TEST_CASE("interrupts: nobody waits for a sleeper whose kernel does not end") {
  Fixture f;
  REQUIRE(f.ask(1) == CUDA_SUCCESS);
  REQUIRE(becomes([] { return asleep == 1; }));
  f.interrupts = nullptr;
  CHECK(asleep == 1);
  due = 1;
  REQUIRE(becomes([] { return asleep == 0; }));
  CHECK(f.ended == 0);
}

}  // namespace mpsshim::broker
