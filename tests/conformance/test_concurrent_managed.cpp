// SPDX-License-Identifier: Apache-2.0
// Host and kernels use managed memory at the same time, for longer than one of them waits for the other.
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "driver_under_test.hpp"
#include "loaded_image.hpp"
#include "managed_memory.hpp"

using namespace mpsshim::test;

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBlockWords = 16'384;  // 64 KiB, which is opened and closed at once
constexpr std::chrono::seconds kLimit{60};

}  // namespace

TEST_CASE("managed memory may be used by host and kernels at once", "[forwarded][managed]") {
  const DeviceContext context;
  if (driver_kind() != DriverKind::forwarded) MPSSHIM_SKIP("natively that is the device's affair");
  CHECK(has_concurrent_managed_access() == 1);
}

TEST_CASE("the host looks at what a kernel counts in managed memory, and tells it there to stop", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_CONCURRENT_ACCESS();
  const LoadedImage image("migration.fatbin");
  const size_t distance = GENERATE(as<size_t>{}, 1, 2 * kBlockWords);
  const ManagedWords memory(4 * kBlockWords);
  memory[0] = memory[distance] = 0;
  OK(launch(image.function("count_until_told"), nullptr, 1, 1, memory.address(), memory.address(distance)));
  const auto end = Clock::now() + kLimit;
  unsigned seen = 0, changes = 0;
  while (changes < 20 && Clock::now() < end) {
    const unsigned count = memory[distance];
    changes += count != seen ? 1 : 0;
    CHECK(count >= seen);
    seen = count;
  }
  CHECK(changes == 20);
  memory[0] = 1;
  OK(CU(cuCtxSynchronize)());
  const unsigned last = memory[distance];
  CHECK(last >= seen);
  CHECK(memory[0] == 1);
  usleep(10'000);
  CHECK(memory[distance] == last);
}

TEST_CASE("the host looks at once at what it is advised to use in place", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_CONCURRENT_ACCESS();
  const LoadedImage image("migration.fatbin");
  const CUmem_advise advice = GENERATE(CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_MEM_ADVISE_SET_ACCESSED_BY);
  const ManagedWords memory(4 * kBlockWords);
  OK(call("cuMemAdvise", memory.address(), memory.count() * sizeof(unsigned), advice, CUdevice{CU_DEVICE_CPU}));
  CUstream beside = nullptr;
  OK(CU(cuStreamCreate)(&beside, CU_STREAM_NON_BLOCKING));
  auto quickest = Clock::duration::max();
  for (int attempt = 0; attempt < 3; ++attempt) {
    memory[0] = 0;
    memory[2 * kBlockWords] = 0;
    OK(launch(image.function("count_until_told"), nullptr, 1, 1, memory.address(), memory.address(2 * kBlockWords)));
    const auto began = Clock::now();
    const unsigned first = memory[2 * kBlockWords];
    quickest = std::min(quickest, Clock::now() - began);
    OK(CU(cuMemsetD32Async)(memory.address(), 1, 1, beside));  // the kernel ends
    OK(CU(cuCtxSynchronize)());
    CHECK(memory[2 * kBlockWords] >= first);
  }
  OK(CU(cuStreamDestroy)(beside));
  CHECK(quickest < std::chrono::milliseconds(100));  // without: 200, as for other kernels that take long
}

TEST_CASE("words that a kernel changes and words that the host changes, side by side in managed memory", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_CONCURRENT_ACCESS();
  const LoadedImage image("migration.fatbin");
  constexpr unsigned kWords = 600;
  const ManagedWords told(2), words(kWords), others(3 * kBlockWords);
  for (unsigned i = 0; i < kWords; ++i) words[i] = 0;
  told[0] = 0;
  OK(launch(image.function("add_until_told"), nullptr, 1, 1, told.address(), words.address(), kWords));
  unsigned wrong = 0;
  const auto end = Clock::now() + std::chrono::seconds(3);
  unsigned round = 1;
  for (; Clock::now() < end; ++round) {
    for (unsigned i = 1; i < kWords; i += 40) {
      words[i] = round + i;
      wrong += words[i] != round + i;
    }
    for (size_t i = 7; i < others.count(); i += 997) others[i] = round;
    usleep(500);
  }
  told[0] = 1;
  OK(CU(cuCtxSynchronize)());
  const unsigned rounds = told[1];
  CHECK(rounds > 0);
  for (unsigned i = 0; i < kWords; i += 2) wrong += words[i] != rounds;
  for (unsigned i = 1; i < kWords; i += 40) wrong += words[i] != round - 1 + i;
  for (size_t i = 7; i < others.count(); i += 997) wrong += others[i] != round - 1;
  CHECK(wrong == 0);
}

// What a mailbox is: first the contents, then the word that says so, wherever that lies.
TEST_CASE("a kernel that looks for a word of the host's in managed memory finds what was written before it", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_CONCURRENT_ACCESS();
  struct Layout {
    size_t told, words, count;
  };
  const Layout layout = GENERATE(Layout{0, 64, 16}, Layout{2, 64, 8'192}, Layout{0, kBlockWords, 1});
  const LoadedImage image("migration.fatbin");
  const ManagedWords memory(4 * kBlockWords), answer(2);
  std::fill_n(memory.data(), memory.count(), 0u);
  std::fill_n(answer.data(), answer.count(), 0u);
  OK(launch(image.function("check_numbers"), nullptr, 1, 1, memory.address(layout.told), memory.address(layout.words),
            static_cast<unsigned>(layout.count), answer.address()));
  const auto end = Clock::now() + kLimit;
  unsigned number = 0;
  while (number < 100 && Clock::now() < end) {
    ++number;
    for (size_t i = 0; i < layout.count; ++i) memory[layout.words + i] = number;
    memory[layout.told] = number;
    while (answer[0] != number && Clock::now() < end) {
    }
  }
  CHECK(answer[0] == 100);
  memory[layout.told] = ~0u;
  OK(CU(cuCtxSynchronize)());
  CHECK(answer[1] == 0);
}

// And what it finds of a kernel's, in the same part of the memory, is not older than the word that it has seen, if the kernel pauses in between.
// Behind the words, since copies go upwards.
TEST_CASE("the host finds what a kernel has written to managed memory before a word that it has seen", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_CONCURRENT_ACCESS();
  const unsigned count = GENERATE(1u, 64u);
  const LoadedImage image("migration.fatbin");
  const ManagedWords memory(kBlockWords), stop(1);
  const size_t told = kBlockWords - 1;
  std::fill_n(memory.data(), memory.count(), 0u);
  stop[0] = 0;
  OK(launch(image.function("tell_numbers"), nullptr, 1, 1, stop.address(), memory.address(told), memory.address(), count, 1'000'000u));
  const auto end = Clock::now() + kLimit;
  unsigned seen = 0, changes = 0, older = 0;
  while (changes < 200 && Clock::now() < end) {
    const unsigned number = memory[told];
    for (unsigned i = 0; i < count; ++i) older += memory[i] < number ? 1 : 0;
    changes += number != seen ? 1 : 0;
    seen = number;
  }
  stop[0] = 1;
  OK(CU(cuCtxSynchronize)());
  CHECK(changes == 200);
  CHECK(older == 0);
}
