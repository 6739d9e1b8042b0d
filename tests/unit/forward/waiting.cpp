// SPDX-License-Identifier: Apache-2.0
// The ways to wait, without a broker: what decides when to sleep.
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "interposer/channel/wait.hpp"
#include "interposer/forward/memory/copy_pace.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim;
using namespace mpsshim::interposer;

namespace {

struct Waited {
  int looks = 0;
  int sleeps = 0;
  WaitEnd end = WaitEnd::ready;
};

// Waits until another thread says so after `ms`.
Waited wait_for(std::chrono::milliseconds ms, WaitStyle style) {
  auto header = std::make_unique<proto::ChannelHeader>();
  header->session_state.store(static_cast<std::uint32_t>(proto::SessionState::active));
  std::atomic<bool> ready{false};
  std::thread other([&] {
    std::this_thread::sleep_for(ms);
    ready = true;
  });
  Waited waited;
  Wait wait("a test", *header, {}, style);
  waited.end = wait.until(
      [&] {
        ++waited.looks;
        return ready.load();
      },
      [&](std::uint64_t) {
        ++waited.sleeps;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
  other.join();
  return waited;
}

}  // namespace

TEST_CASE("waiting: what is there already takes one look") {
  proto::ChannelHeader header{};
  Wait wait("a test", header, {}, WaitStyle::sleep);
  int sleeps = 0;
  CHECK(wait.until([] { return true; }, [&](std::uint64_t) { ++sleeps; }) == WaitEnd::ready);
  CHECK(sleeps == 0);
}

TEST_CASE("waiting: who wants to sleep does so at once, who wants to spin or yield never") {
  const Waited slept = wait_for(std::chrono::milliseconds(20), WaitStyle::sleep);
  CHECK(slept.end == WaitEnd::ready);
  CHECK(slept.sleeps > 0);
  CHECK(slept.looks == slept.sleeps + 1);
  for (const WaitStyle style : {WaitStyle::spin, WaitStyle::yield}) {
    const Waited waited = wait_for(std::chrono::milliseconds(20), style);
    CHECK(waited.end == WaitEnd::ready);
    CHECK(waited.sleeps == 0);
  }
}

TEST_CASE("waiting: by itself a wait spins, then sleeps") {
  const Waited waited = wait_for(std::chrono::milliseconds(20), WaitStyle::automatic);
  CHECK(waited.looks > waited.sleeps + 1);
  CHECK(waited.sleeps > 0);
}

TEST_CASE("waiting: by itself a wait gives its core away before it sleeps, and not at once") {
  constexpr std::uint64_t kBudgetUs = 50;
  CHECK(WaitPlan(WaitStyle::automatic).next_step(0, kBudgetUs) == WaitStep::look);
  CHECK(WaitPlan(WaitStyle::automatic).next_step(WaitPlan::kSpinUs - 1, kBudgetUs) == WaitStep::look);
  CHECK(WaitPlan(WaitStyle::automatic).next_step(WaitPlan::kSpinUs, kBudgetUs) == WaitStep::yield);
  CHECK(WaitPlan(WaitStyle::automatic).next_step(kBudgetUs - 1, kBudgetUs) == WaitStep::yield);
  CHECK(WaitPlan(WaitStyle::automatic).next_step(kBudgetUs, kBudgetUs) == WaitStep::sleep);
  CHECK(WaitPlan(WaitStyle::automatic).next_step(2, 2) == WaitStep::sleep);
  CHECK(WaitPlan(WaitStyle::spin).next_step(1'000'000, kBudgetUs) == WaitStep::look);
  CHECK(WaitPlan(WaitStyle::yield).next_step(0, kBudgetUs) == WaitStep::yield);
}

TEST_CASE("waiting: where few are at work, or somebody wants the core for long, it is kept until the budget is spent") {
  constexpr std::uint64_t kBudgetUs = 50;
  const WaitPlan plan(WaitStyle::automatic);
  for (const std::uint64_t waited_us : {WaitPlan::kSpinUs, kBudgetUs - 1}) {
    CHECK(plan.next_step(waited_us, kBudgetUs, 5'000) == WaitStep::look);
    CHECK(plan.next_step(waited_us, kBudgetUs, 0, true) == WaitStep::look);
    CHECK(plan.next_step(waited_us, kBudgetUs, 0, false) == WaitStep::yield);
  }
  CHECK(plan.next_step(kBudgetUs, kBudgetUs, 0, true) == WaitStep::sleep);
  CHECK(WaitPlan(WaitStyle::yield).next_step(WaitPlan::kSpinUs, kBudgetUs, 5'000, true) == WaitStep::yield);  // as it asked for
}

TEST_CASE("waiting: a wait for the GPU stays awake beyond its budget for as long as it may, any other sleeps") {
  constexpr std::uint64_t kBudgetUs = 50;
  constexpr std::uint64_t kAwakeUs = 5'000;
  WaitPlan plan(WaitStyle::automatic);
  CHECK(plan.next_step(kBudgetUs, kBudgetUs, kAwakeUs) == WaitStep::sleep);  // for an answer
  plan.is_for_gpu = true;
  CHECK(plan.next_step(kBudgetUs, kBudgetUs, kAwakeUs) == WaitStep::yield);
  CHECK(plan.next_step(kAwakeUs - 1, kBudgetUs, kAwakeUs) == WaitStep::yield);
  CHECK(plan.next_step(kAwakeUs, kBudgetUs, kAwakeUs) == WaitStep::sleep);
  CHECK(plan.next_step(kBudgetUs, kBudgetUs) == WaitStep::sleep);
  CHECK(plan.next_step(kBudgetUs, kBudgetUs, kAwakeUs, true) == WaitStep::sleep);  // others want the core
  plan.style = WaitStyle::sleep;
  CHECK(plan.next_step(0, kBudgetUs, kAwakeUs) == WaitStep::sleep);  // as it asked for
}

TEST_CASE("waiting: a core is wanted for a while once a thread has come back to it late") {
  CoreDemand demand;
  CHECK_FALSE(demand.is_high(0));
  demand.note_look(1'000, CoreDemand::kLateUs - 1);
  CHECK_FALSE(demand.is_high(1'000));
  demand.note_look(2'000, CoreDemand::kLateUs);
  CHECK(demand.is_high(2'000));
  demand.note_look(2'001, 1);
  CHECK(demand.is_high(2'000 + CoreDemand::kCountsUs - 1));
  CHECK_FALSE(demand.is_high(2'000 + CoreDemand::kCountsUs));
}

TEST_CASE("waiting: a core that is wanted again and again is taken to be wanted for ever longer, up to some seconds") {
  CoreDemand demand;
  std::uint64_t now_us = 1'000'000;
  CHECK(demand.note_look(now_us, CoreDemand::kLateUs));
  std::uint64_t counts_us = CoreDemand::kCountsUs;
  for (int i = 0; i < 12; ++i) {
    now_us += counts_us;  // it counts no more, and is found to be so at once
    CHECK_FALSE(demand.is_high(now_us));
    CHECK(demand.note_look(now_us, CoreDemand::kLateUs));
    counts_us = std::min(2 * counts_us, CoreDemand::kCountsMostUs);
    CHECK(demand.is_high(now_us + counts_us - 1));
  }
  CHECK(counts_us == CoreDemand::kCountsMostUs);
  now_us += 2 * counts_us;  // for as long again it was not
  CHECK(demand.note_look(now_us, CoreDemand::kLateUs));
  CHECK_FALSE(demand.is_high(now_us + CoreDemand::kCountsUs));
}

TEST_CASE("waiting: a wait whose end is foreseen sleeps until shortly before it and looks until shortly after it") {
  constexpr std::uint64_t kBudgetUs = 50;
  const WaitPlan plan(WaitStyle::automatic, 32'000);
  CHECK(plan.next_step(0, kBudgetUs) == WaitStep::look);
  CHECK(plan.next_step(kBudgetUs, kBudgetUs) == WaitStep::sleep);
  CHECK(plan.sleep_us(kBudgetUs, Wait::kStepUs) == Wait::kStepUs);
  CHECK(plan.next_step(30'999, kBudgetUs) == WaitStep::sleep);
  CHECK(plan.sleep_us(30'900, Wait::kStepUs) == 100);
  CHECK(plan.next_step(31'000, kBudgetUs) == WaitStep::yield);
  CHECK(plan.next_step(33'000, kBudgetUs) == WaitStep::yield);
  CHECK(plan.next_step(33'001, kBudgetUs) == WaitStep::sleep);
  CHECK(plan.sleep_us(33'001, Wait::kStepUs) == Wait::kStepUs);
  CHECK(WaitPlan(WaitStyle::sleep, 32'000).next_step(32'000, kBudgetUs) == WaitStep::sleep);  // as it asked for
}

TEST_CASE("waiting: the first sleep of a wait whose end is foreseen is no longer than until then") {
  constexpr std::uint64_t kExpectedUs = 16'000;
  std::uint64_t first_us = Wait::kStepUs;
  // Again where this thread had no core until the end was past.
  for (int attempt = 0; attempt < 20 && first_us == Wait::kStepUs; ++attempt) {
    auto header = std::make_unique<proto::ChannelHeader>();
    Wait wait("a test", *header, {}, WaitPlan(WaitStyle::automatic, kExpectedUs));
    bool has_slept = false;
    CHECK(wait.until([&] { return has_slept; },
                     [&](std::uint64_t timeout_us) {
                       first_us = timeout_us;
                       has_slept = true;
                     }) == WaitEnd::ready);
  }
  CHECK(first_us < kExpectedUs);
}

TEST_CASE("waiting: a short wait is not foreseen") {
  const WaitPlan plan(WaitStyle::automatic, WaitPlan::kLeastExpectedUs - 1);
  CHECK(plan.next_step(WaitPlan::kLeastExpectedUs - 1, 50) == WaitStep::sleep);
  CHECK(plan.sleep_us(100, Wait::kStepUs) == Wait::kStepUs);
}

TEST_CASE("waiting: how long a copy takes is told from the last one, for long copies") {
  forward::CopyPace pace;
  constexpr std::uint64_t kGiB = 1ull << 30;
  CHECK(pace.expected_us(kGiB) == 0);
  pace.learn(kGiB, std::chrono::microseconds(20'000));
  CHECK(pace.expected_us(kGiB) == 20'000);
  CHECK(pace.expected_us(kGiB / 4) == 5'000);
  CHECK(pace.expected_us(forward::CopyPace::kLeastBytes - 1) == 0);
  pace.learn(1, std::chrono::microseconds(1'000'000));  // says nothing
  pace.learn(kGiB, std::chrono::microseconds(0));
  CHECK(pace.expected_us(kGiB) == 20'000);
}

TEST_CASE("waiting: a session that moves or ends is noticed without sleeping") {
  for (const auto& [state, end] : {std::pair(proto::SessionState::moved, WaitEnd::moved), std::pair(proto::SessionState::failed, WaitEnd::failed)}) {
    auto header = std::make_unique<proto::ChannelHeader>();
    header->session_state.store(static_cast<std::uint32_t>(state));
    Wait wait("a test", *header, {}, WaitStyle::spin);
    CHECK(wait.until([] { return false; }, [](std::uint64_t) {}) == end);
  }
}

TEST_CASE("waiting: spinning that does not pay becomes shorter, and longer again when it does") {
  SpinBudget budget(50);
  CHECK(budget.us() == 50);
  for (int i = 0; i < 3; ++i) budget.learn(10'000);
  CHECK(budget.us() == 6);
  for (int i = 0; i < 10; ++i) budget.learn(10'000);
  CHECK(budget.us() == SpinBudget::kLeastUs);
  budget.learn(100);  // twice the budget: spinning for all of it would have paid
  CHECK(budget.us() == 2 * SpinBudget::kLeastUs);
  for (int i = 0; i < 10; ++i) budget.learn(7);
  CHECK(budget.us() == 50);
}

TEST_CASE("waiting: on one or two cores hardly any spinning") {
  CHECK(SpinBudget::most_us_for(1) == SpinBudget::kLeastUs);
  CHECK(SpinBudget::most_us_for(2) == SpinBudget::kLeastUs);
  CHECK(SpinBudget::most_us_for(4) == 20);
  CHECK(SpinBudget::most_us_for(64) == 50);
  // A first wait is patient where cores can be spared, and only there.
  CHECK(SpinBudget::most_cold_us_for(2) == SpinBudget::kLeastUs);
  CHECK(SpinBudget::most_cold_us_for(4) == 20);
  CHECK(SpinBudget::most_cold_us_for(64) == 200);
}
