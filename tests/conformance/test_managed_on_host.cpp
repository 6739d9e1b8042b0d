// SPDX-License-Identifier: Apache-2.0
// Managed memory whose preferred place is the host, by advice: both sides see each other's stores at once, and it is right through every change of
// mind. What touches it waits for its kernels itself, as where access is concurrent.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "driver_under_test.hpp"
#include "loaded_image.hpp"
#include "managed_memory.hpp"

using namespace mpsshim::test;

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kManyWords = size_t{1} << 18;
constexpr std::chrono::seconds kLimit{60};

void advise(const ManagedWords& memory, CUmem_advise advice) {
  OK(call("cuMemAdvise", memory.address(), memory.count() * sizeof(unsigned), advice, CUdevice{CU_DEVICE_CPU}));
}
void prefer_host(const ManagedWords& memory) { advise(memory, CU_MEM_ADVISE_SET_PREFERRED_LOCATION); }
void prefer_nothing(const ManagedWords& memory) { advise(memory, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION); }

// How often the library's thread that answers touches has been woken; 0: there is none.
unsigned long wakings() {
  unsigned long sum = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream name(thread.path() / "comm"), status(thread.path() / "status");
    std::string word;
    if (!(name >> word) || word != "mpsshim-touch") continue;
    for (unsigned long count = 0; status >> word;) {
      if (word == "voluntary_ctxt_switches:" && status >> count) sum += count;
    }
  }
  return sum;
}

// Numbers to a kernel and back. The last one seen.
unsigned converse(const LoadedImage& image, const ManagedWords& memory, size_t told, size_t said, unsigned rounds) {
  OK(CU(cuCtxSynchronize)());
  memory[told] = 0;
  memory[said] = 0;
  OK(launch(image.function("echo"), nullptr, 1, 1, memory.address(told), memory.address(said), rounds));
  const auto end = Clock::now() + kLimit;
  unsigned seen = 0;
  for (unsigned number = 1; number <= rounds && Clock::now() < end; ++number) {
    memory[told] = number;
    while (memory[said] != number && Clock::now() < end) sched_yield();
    seen = memory[said];
  }
  if (seen != rounds) memory[told] = rounds;  // it ends
  OK(CU(cuCtxSynchronize)());
  return seen;
}

}  // namespace

TEST_CASE("a kernel and the host converse in managed memory whose preferred place is the host", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_CONCURRENT_ACCESS();
  const LoadedImage image("managed_on_host.fatbin");
  const size_t words = GENERATE(as<size_t>{}, 2, 3 * kManyWords + 5);
  const ManagedWords memory(words);
  memory[words - 1] = 5;
  OK(launch(image.function("transform"), nullptr, 1, 32, memory.address(), static_cast<unsigned>(words), 1u, 1u));  // the device's by now
  prefer_host(memory);                                                                                              // waits for no kernel
  OK(CU(cuCtxSynchronize)());
  CHECK(memory[words - 1] == 6);
  constexpr unsigned kRounds = 300;
  const unsigned long before = wakings();
  CHECK(converse(image, memory, 0, words - 1, kRounds) == kRounds);
  const bool is_second_device = std::getenv("MPSSHIM_TEST_OTHER_DEVICE") != nullptr;  // beside a session of the first: there it migrates
  if (!is_second_device) CHECK(wakings() - before < kRounds / 3);                     // where it migrates each round has two touches
  // Sent to the device, and back.
  for (const CUdevice place : {CUdevice{0}, CUdevice{CU_DEVICE_CPU}}) {
    OK(call("cuMemPrefetchAsync", memory.address(), memory.bytes(), place, CUstream{nullptr}));
    OK(launch(image.function("transform"), nullptr, 1, 32, memory.address(), static_cast<unsigned>(words), 0u, 9u));
    OK(CU(cuCtxSynchronize)());
    CHECK(memory[words - 1] == 9);
    const unsigned long there = wakings();
    CHECK(converse(image, memory, 0, words - 1, 20) == 20);
    if (place != CU_DEVICE_CPU && there != 0) CHECK(wakings() - there >= 20);  // it migrates by then
  }
  const unsigned long back = wakings();
  CHECK(converse(image, memory, 0, words - 1, kRounds) == kRounds);
  if (!is_second_device) CHECK(wakings() - back < kRounds / 3);
  prefer_nothing(memory);
  CHECK(converse(image, memory, 0, words - 1, 3) == 3);
}

TEST_CASE("host and kernels alternate on managed memory while its preferred place changes", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  const LoadedImage image("managed_on_host.fatbin");
  const CUfunction transform = image.function("transform");
  CUstream streams[2] = {};
  for (CUstream& stream : streams) OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  const ManagedWords memory(kManyWords + 100);
  std::vector<unsigned> model(memory.count(), 0);
  std::mt19937 random(20261129);
  const auto below = [&](size_t bound) { return std::uniform_int_distribution<size_t>(0, bound - 1)(random); };
  unsigned wrong = 0;
  for (unsigned round = 1; round <= 1000 && wrong == 0; ++round) {
    const size_t first = below(memory.count());
    const auto count = static_cast<unsigned>(1 + below(std::min<size_t>(memory.count() - first, below(4) == 0 ? memory.count() : 300)));
    CUstream const stream = streams[below(2)];
    const size_t what = below(20);
    if (what < 6) {
      for (CUstream const other : streams) OK(CU(cuStreamSynchronize)(other));  // kernels of two streams are not ordered
      OK(launch(transform, stream, 1, 32, memory.address(first), count, 3u, round));
      for (size_t i = first; i < first + count; ++i) model[i] = model[i] * 3 + round;
    } else if (what < 10) {
      OK(CU(cuCtxSynchronize)());
      for (size_t i = first; i < first + count; ++i) memory[i] = model[i] = round + static_cast<unsigned>(i);
    } else if (what < 12) {
      OK(call("cuMemPrefetchAsync", memory.address(first), size_t{count} * 4, below(2) == 0 ? CUdevice{0} : CUdevice{CU_DEVICE_CPU}, stream));
    } else if (what < 14) {
      for (CUstream const other : streams) OK(CU(cuStreamSynchronize)(other));
      OK(CU(cuMemsetD32Async)(memory.address(first), round, count, stream));
      std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(first), count, round);
    } else if (what < 15) {
      prefer_host(memory);  // perhaps beside a kernel
    } else if (what < 16) {
      prefer_nothing(memory);
    } else {
      OK(CU(cuCtxSynchronize)());
      for (size_t i = first; i < first + count; ++i) wrong += memory[i] != model[i];
    }
  }
  CHECK(wrong == 0);
  OK(CU(cuCtxSynchronize)());
  for (size_t i = 0; i < memory.count(); ++i) wrong += memory[i] != model[i];
  CHECK(wrong == 0);
  for (CUstream stream : streams) OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("memory that is managed on the host is copied, filled and described as before", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  const LoadedImage image("managed_on_host.fatbin");
  const ManagedWords memory(50'000), other(10);
  CUdeviceptr device = 0;
  OK(CU(cuMemAlloc)(&device, memory.bytes()));
  prefer_host(memory);
  std::vector<unsigned> words(memory.count());
  for (unsigned i = 0; i < words.size(); ++i) words[i] = i * 7;
  OK(CU(cuMemcpyHtoD)(memory.address(), words.data(), memory.bytes()));
  CHECK(memory[49'999] == 49'999 * 7);
  OK(CU(cuMemcpyDtoD)(device, memory.address(), memory.bytes()));
  OK(CU(cuMemsetD32)(memory.address(10), 5, 40'000));
  CHECK(memory[9] == 63);
  CHECK(memory[40'009] == 5);
  CHECK(memory[40'010] == 40'010 * 7);
  OK(CU(cuMemcpyDtoD)(memory.address(), device, memory.bytes()));
  std::vector<unsigned> back(words.size());
  OK(CU(cuMemcpyDtoH)(back.data(), memory.address(), memory.bytes()));
  CHECK(back == words);
  OK(CU(cuMemcpy)(other.address(), memory.address(100), other.bytes()));
  CHECK(other[3] == 103 * 7);
  OK(launch(image.function("transform"), nullptr, 1, 32, memory.address(3), 1u, 2u, 0u));
  OK(CU(cuCtxSynchronize)());
  CHECK(memory[3] == 42);

  unsigned type = 0, is_managed = 0;
  OK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory.address(7)));
  OK(CU(cuPointerGetAttribute)(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, memory.address(7)));
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  CHECK(is_managed == 1);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  OK(CU(cuMemGetAddressRange)(&base, &bytes, memory.address(7)));
  CHECK(base == memory.address());
  CHECK(bytes == memory.bytes());
  CHECK(CU(cuMemcpyHtoD)(memory.address(), words.data(), memory.bytes() + 4) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(device));
}

TEST_CASE("advice that managed memory belongs on the host waits for no kernel that waits for the program", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_CONCURRENT_ACCESS();
  const LoadedImage spinning_image, image("managed_on_host.fatbin");
  void* flag = nullptr;
  OK(CU(cuMemHostAlloc)(&flag, 8, 0));
  std::memset(flag, 0, 8);
  CUstream spinning = nullptr, own = nullptr;
  OK(CU(cuStreamCreate)(&spinning, CU_STREAM_NON_BLOCKING));
  OK(CU(cuStreamCreate)(&own, CU_STREAM_NON_BLOCKING));
  OK(launch(spinning_image.function("spin"), spinning, 1, 1, reinterpret_cast<CUdeviceptr>(flag)));  // before there is any managed memory
  while (static_cast<volatile unsigned*>(flag)[1] == 0) sched_yield();
  const ManagedWords memory(1000);
  prefer_host(memory);
  memory[7] = 5;
  OK(launch(image.function("transform"), own, 1, 32, memory.address(), 1000u, 2u, 1u));
  OK(CU(cuStreamSynchronize)(own));
  *static_cast<volatile unsigned*>(flag) = 1;
  OK(CU(cuCtxSynchronize)());
  CHECK(memory[7] == 11);
  prefer_host(memory);
  CHECK(converse(image, memory, 0, 999, 10) == 10);
  OK(CU(cuStreamDestroy)(spinning));
  OK(CU(cuStreamDestroy)(own));
  OK(CU(cuMemFreeHost)(flag));
}

TEST_CASE("many pieces of managed memory on the host, freed there", "[managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  const LoadedImage image("managed_on_host.fatbin");
  const CUfunction transform = image.function("transform");
  for (unsigned round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<ManagedWords>> pieces;
    for (unsigned i = 0; i < 40; ++i) {  // more than have a chunk each
      pieces.push_back(std::make_unique<ManagedWords>(1 + i * 1037));
      if (i % 2 == 0) prefer_host(*pieces.back());
      (*pieces.back())[i * 1037] = i;
    }
    for (unsigned i = 0; i < 40; ++i) OK(launch(transform, nullptr, 1, 32, pieces[i]->address(), 1 + i * 1037, 1u, 1000u));
    OK(CU(cuCtxSynchronize)());
    unsigned wrong = 0;
    for (unsigned i = 0; i < 40; ++i) wrong += (*pieces[i])[i * 1037] != 1000 + i;
    CHECK(wrong == 0);
    for (unsigned i = 0; i < 40; i += 3) pieces[i].reset();
    for (unsigned i = 1; i < 40; i += 3) prefer_nothing(*pieces[i]);
    for (unsigned i = 1; i < 40; i += 3) OK(launch(transform, nullptr, 1, 32, pieces[i]->address(), 1 + i * 1037, 1u, 1000u));
    OK(CU(cuCtxSynchronize)());
    for (unsigned i = 1; i < 40; i += 3) wrong += (*pieces[i])[i * 1037] != 2000 + i;
    CHECK(wrong == 0);
  }
}

TEST_CASE("atomic additions of host and kernel are all counted whatever place is preferred, when the kernels' image is loaded before or after",
          "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_CONCURRENT_ACCESS();
  const bool is_advised_first = GENERATE(true, false);
  constexpr unsigned kWords = 1000, kRounds = 200;
  const ManagedWords memory(kWords);
  for (unsigned i = 0; i < kWords; ++i) memory[i] = i;
  if (is_advised_first) prefer_host(memory);
  const LoadedImage image("migration.fatbin");
  const CUfunction add = image.function("add_to_all");
  if (!is_advised_first) prefer_host(memory);
  OK(launch(add, nullptr, 1, 64, memory.address(), kWords, kRounds));
  for (unsigned round = 0; round < kRounds; ++round) {
    for (unsigned i = 0; i < kWords; ++i) __atomic_fetch_add(memory.data() + i, 1u, __ATOMIC_SEQ_CST);
  }
  OK(CU(cuCtxSynchronize)());
  unsigned wrong = 0;
  for (unsigned i = 0; i < kWords; ++i) wrong += memory[i] != i + 2 * kRounds;
  CHECK(wrong == 0);
  // It migrates: two touches a round.
  const LoadedImage conversing("managed_on_host.fatbin");
  const unsigned long before = wakings();
  CHECK(converse(conversing, memory, 0, kWords - 1, 20) == 20);
  if (before != 0) CHECK(wakings() - before >= 20);
}
