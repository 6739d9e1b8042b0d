// SPDX-License-Identifier: Apache-2.0
// Host and kernels take turns at managed memory, and do not take turns: who looks finds what was written last.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "driver_under_test.hpp"
#include "loaded_image.hpp"
#include "managed_memory.hpp"

using namespace mpsshim::test;

namespace {

constexpr size_t kMiBWords = size_t{1} << 18;

unsigned rounds_of(unsigned usual) {
  const char* const asked = std::getenv("MPSSHIM_TEST_ROUNDS");
  return asked != nullptr ? static_cast<unsigned>(std::strtoul(asked, nullptr, 10)) : usual;
}

// `words` of memory, of which a kernel changes so many at most; what is done to pieces of any size is against a model.
void alternate(size_t words, size_t most_of_kernel, unsigned rounds) {
  const LoadedImage image("migration.fatbin");
  const CUfunction transform = image.function("transform");
  CUstream streams[2] = {};
  for (CUstream& stream : streams) OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  const ManagedWords memory(words);
  std::vector<unsigned> model(memory.count(), 0);
  std::mt19937 random(4711);
  const auto below = [&](size_t bound) { return std::uniform_int_distribution<size_t>(0, bound - 1)(random); };
  unsigned wrong = 0;
  for (unsigned round = 1; round <= rounds; ++round) {
    const size_t first = below(memory.count());
    const auto count = static_cast<unsigned>(1 + below(std::min<size_t>(memory.count() - first, below(4) == 0 ? memory.count() : 300)));
    CUstream const stream = streams[below(2)];
    switch (below(8)) {
      case 0:
      case 1:
      case 2:                                                                     // Not waited for: who touches it waits.
        for (CUstream const other : streams) OK(CU(cuStreamSynchronize)(other));  // kernels of two streams are not ordered
        OK(launch(transform, stream, 1, 32, memory.address(first), std::min(count, static_cast<unsigned>(most_of_kernel)), 3u, round));
        for (size_t i = first; i < first + std::min<size_t>(count, most_of_kernel); ++i) model[i] = model[i] * 3 + round;
        break;
      case 3:
        before_touch();
        for (size_t i = first; i < first + count; ++i) memory[i] = model[i] = round + static_cast<unsigned>(i);
        break;
      case 4:
        OK(call("cuMemPrefetchAsync", memory.address(first), size_t{count} * 4, below(2) == 0 ? CUdevice{0} : CUdevice{CU_DEVICE_CPU}, stream));
        break;
      case 5:
        for (CUstream const other : streams) OK(CU(cuStreamSynchronize)(other));
        OK(CU(cuMemsetD32Async)(memory.address(first), round, count, stream));
        std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(first), count, round);
        break;
      default:
        before_touch();
        for (size_t i = first; i < first + count; ++i) wrong += memory[i] != model[i];
        break;
    }
    if (wrong != 0) break;
  }
  CHECK(wrong == 0);
  before_touch();
  for (size_t i = 0; i < memory.count(); ++i) wrong += memory[i] != model[i];
  CHECK(wrong == 0);
  for (CUstream stream : streams) OK(CU(cuStreamDestroy)(stream));
}

}  // namespace

TEST_CASE("host and kernels alternate on random pieces of managed memory", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  alternate(kMiBWords / 4 + 100, kMiBWords, rounds_of(1500));
}

TEST_CASE("host and kernels alternate on pieces of managed memory of megabytes", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  alternate(kMiBWords * 24 + 100, 5000, rounds_of(600));
}

TEST_CASE("atomic additions of host and kernel to the same words are all counted", "[managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  const LoadedImage image("migration.fatbin");
  const CUfunction add = image.function("add_to_all");
  constexpr unsigned kWords = 1000, kRounds = 200;
  const ManagedWords memory(kWords);
  for (unsigned i = 0; i < kWords; ++i) memory[i] = i;
  OK(launch(add, nullptr, 1, 64, memory.address(), kWords, kRounds));
  for (unsigned round = 0; round < kRounds; ++round) {
    for (unsigned i = 0; i < kWords; ++i) __atomic_fetch_add(memory.data() + i, 1u, __ATOMIC_SEQ_CST);
    if (round % 50 == 10) OK(launch(add, nullptr, 1, 64, memory.address(), kWords, 1u));
  }
  OK(CU(cuCtxSynchronize)());
  unsigned wrong = 0;
  for (unsigned i = 0; i < kWords; ++i) wrong += memory[i] != i + 2 * kRounds + kRounds / 50;
  CHECK(wrong == 0);
}

TEST_CASE("threads of the host touch managed memory at once, and while another launches", "[managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  const LoadedImage image("migration.fatbin");
  const CUfunction transform = image.function("transform");
  const ManagedWords memory(kMiBWords), other(1024);
  const auto count = static_cast<unsigned>(memory.count());
  std::atomic<unsigned> wrong{0};
  for (unsigned round = 1; round <= 10; ++round) {
    OK(launch(transform, nullptr, 4, 64, memory.address(), count, 0u, round));
    before_touch();
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < 8; ++thread) {
      threads.emplace_back([&, thread] {
        for (size_t i = thread * 100; i < memory.count(); i += 997) wrong += memory[i] != round;
        for (size_t i = thread; i < memory.count(); i += 8 * 512) memory[i] = round;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(wrong == 0);
  // One that launches all the while on other memory does not keep this one out.
  std::atomic<bool> stops{false};
  std::atomic<unsigned> failed{0}, launched{0};
  std::thread launcher([&] {
    failed += CU(cuCtxSetCurrent)(context.handle()) != CUDA_SUCCESS;
    for (; !stops; ++launched) failed += launch(transform, nullptr, 1, 32, other.address(), 32u, 1u, 1u) != CUDA_SUCCESS;
  });
  while (launched < 100 && failed == 0) std::this_thread::yield();
  unsigned kept = 0;
  for (unsigned touch = 0; touch < 12; ++touch) {
    memory[touch * 20'000 % memory.count()] = ++kept;
    CHECK(memory[touch * 20'000 % memory.count()] == kept);
  }
  stops = true;
  launcher.join();
  CHECK(failed == 0);
  OK(CU(cuCtxSynchronize)());  // thousands of launches wait: whoever looks without waiting looks beside them after 200 ms
  CHECK(other[3] == launched);
}

TEST_CASE("buffers of system calls may be managed memory", "[managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  if (!notices_system_calls()) MPSSHIM_SKIP("a handler of SIGSEGV hears nothing of what the kernel touches");
  const LoadedImage image("migration.fatbin");
  const CUfunction transform = image.function("transform");
  const ManagedWords memory(50'000);
  OK(launch(transform, nullptr, 4, 64, memory.address(), 50'000u, 0u, 77u));
  before_touch();
  int ends[2] = {-1, -1};
  REQUIRE(pipe(ends) == 0);
  REQUIRE(write(ends[1], memory.data() + 20'000, 4000) == 4000);
  OK(launch(transform, nullptr, 4, 64, memory.address(), 50'000u, 1u, 1u));
  before_touch();
  REQUIRE(read(ends[0], memory.data() + 40'000, 4000) == 4000);
  CHECK(memory[40'000] == 77);
  CHECK(memory[40'999] == 77);
  CHECK(memory[41'000] == 78);
  OK(launch(transform, nullptr, 4, 64, memory.address(), 50'000u, 2u, 0u));
  before_touch();
  CHECK(memory[40'500] == 154);
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("a program's own handler of SIGSEGV gets the faults that are its own", "[managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  const LoadedImage image("migration.fatbin");
  const CUfunction transform = image.function("transform");
  void* const closed = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(closed != MAP_FAILED);
  static void* volatile faulted = nullptr;
  struct sigaction own {
  }, before{};
  own.sa_flags = SA_SIGINFO;
  own.sa_sigaction = [](int, siginfo_t* info, void*) {
    faulted = info->si_addr;
    mprotect(info->si_addr, 4096, PROT_READ | PROT_WRITE);
  };
  const bool is_first = GENERATE(true, false);  // installed before the library's, or behind it
  if (is_first) REQUIRE(sigaction(SIGSEGV, &own, &before) == 0);
  const ManagedWords memory(10'000);
  if (!is_first) REQUIRE(sigaction(SIGSEGV, &own, &before) == 0);
  for (unsigned round = 1; round <= 3; ++round) {
    OK(launch(transform, nullptr, 4, 64, memory.address(), 10'000u, 0u, round));
    before_touch();
    REQUIRE(mprotect(closed, 4096, PROT_NONE) == 0);
    faulted = nullptr;
    *static_cast<volatile char*>(closed) = 1;
    CHECK(faulted == closed);
    CHECK(memory[77] == round);
  }
  before.sa_handler = SIG_DFL;
  before.sa_flags = 0;
  REQUIRE(sigaction(SIGSEGV, &before, nullptr) == 0);
  munmap(closed, 4096);
}

TEST_CASE("a child of fork leaves managed memory as it is", "[managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  const LoadedImage image("migration.fatbin");
  const CUfunction transform = image.function("transform");
  const ManagedWords memory(10'000);
  const auto synchronize = CU(cuCtxSynchronize);  // found here, not in the child
  for (unsigned round = 1; round <= 3; ++round) {
    OK(launch(transform, nullptr, 4, 64, memory.address(), 10'000u, 0u, round));
    before_touch();
    const pid_t child = fork();
    if (child == 0) _exit(synchronize() == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    memory[5] = 5;
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK((driver_kind() == DriverKind::real || status == 0));
    CHECK(memory[5] == 5);
    CHECK(memory[9'999] == round);
  }
}

TEST_CASE("a launch whose arguments lie in managed memory", "[managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  const LoadedImage image;
  const ManagedWords memory(1024), arguments(16);
  std::memcpy(arguments.data(), std::vector<CUdeviceptr>{memory.address(17)}.data(), sizeof(CUdeviceptr));
  arguments[4] = 4711;
  OK(launch(image.function("store"), nullptr, 1, 1, memory.address(3), 1u));  // closes all of it
  void* pointers[] = {arguments.data(), arguments.data() + 4};
  OK(CU(cuLaunchKernel)(image.function("store"), 1, 1, 1, 1, 1, 1, 0, nullptr, pointers, nullptr));
  before_touch();
  CHECK(memory[17] == 4711);
}

TEST_CASE("a host function touches managed memory between kernels", "[managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  const LoadedImage image("migration.fatbin");
  const CUfunction transform = image.function("transform");
  CUstream streams[2] = {};
  for (CUstream& stream : streams) OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  const ManagedWords memory(1000);
  CUevent behind = nullptr;
  OK(CU(cuEventCreate)(&behind, CU_EVENT_DISABLE_TIMING));
  for (int round = 0; round < 20; ++round) {
    OK(launch(transform, streams[0], 1, 32, memory.address(), 1000u, 0u, 5u));
    OK(CU(cuLaunchHostFunc)(
        streams[0], [](void* words) { static_cast<unsigned*>(words)[7] += 100; }, memory.data()));
    OK(CU(cuEventRecord)(behind, streams[0]));
    OK(CU(cuStreamWaitEvent)(streams[1], behind, 0));
    OK(launch(transform, streams[1], 1, 32, memory.address(), 1000u, 2u, 0u));
    OK(CU(cuStreamSynchronize)(streams[1]));
    CHECK(memory[7] == 210);
    CHECK(memory[8] == 10);
  }
  for (CUstream stream : streams) OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuEventDestroy)(behind));
}

TEST_CASE("memory that is attached to a stream, or to the host, does not wait for others", "[managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  const LoadedImage image("migration.fatbin"), spinning_image;
  const CUfunction spin = spinning_image.function("spin"), transform = image.function("transform");
  CUstream spinning = nullptr, own = nullptr;
  OK(CU(cuStreamCreate)(&spinning, CU_STREAM_NON_BLOCKING));
  OK(CU(cuStreamCreate)(&own, CU_STREAM_NON_BLOCKING));
  const ManagedWords of_stream(1000), of_host(1000);
  OK(CU(cuStreamAttachMemAsync)(own, of_stream.address(), 0, CU_MEM_ATTACH_SINGLE));
  OK(CU(cuStreamAttachMemAsync)(own, of_host.address(), 0, CU_MEM_ATTACH_HOST));
  OK(CU(cuStreamSynchronize)(own));
  void* flag = nullptr;
  OK(CU(cuMemHostAlloc)(&flag, 8, 0));
  std::memset(flag, 0, 8);
  OK(launch(spin, spinning, 1, 1, reinterpret_cast<CUdeviceptr>(flag)));
  while (static_cast<volatile unsigned*>(flag)[1] == 0) usleep(100);
  of_host[5] = 55;
  of_stream[5] = 7;
  OK(launch(transform, own, 1, 32, of_stream.address(), 1000u, 2u, 1u));
  OK(CU(cuStreamSynchronize)(own));
  CHECK(of_stream[5] == 15);
  CHECK(of_host[5] == 55);
  *static_cast<volatile unsigned*>(flag) = 1;
  OK(CU(cuCtxSynchronize)());
  OK(CU(cuStreamAttachMemAsync)(own, of_host.address(), 0, CU_MEM_ATTACH_GLOBAL));
  OK(launch(transform, spinning, 1, 32, of_host.address(), 1000u, 2u, 0u));
  before_touch();
  CHECK(of_host[5] == 110);
  OK(CU(cuMemFreeHost)(flag));
  OK(CU(cuStreamDestroy)(spinning));
  OK(CU(cuStreamDestroy)(own));
}

TEST_CASE("many pieces of managed memory, freed in another order, and a graph that uses one", "[managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  const LoadedImage image("migration.fatbin");
  const CUfunction transform = image.function("transform");
  std::vector<std::unique_ptr<ManagedWords>> pieces;
  for (unsigned i = 0; i < 60; ++i) {
    pieces.push_back(std::make_unique<ManagedWords>(1 + i * 37));
    CHECK((*pieces.back())[0] == 0);
    (*pieces.back())[i * 37] = i;
  }
  for (unsigned i = 0; i < 60; ++i) OK(launch(transform, nullptr, 1, 32, pieces[i]->address(), 1 + i * 37, 1u, 1000u));
  before_touch();
  unsigned wrong = 0;
  for (unsigned i = 0; i < 60; ++i) wrong += (*pieces[i])[i * 37] != 1000 + i;
  CHECK(wrong == 0);
  for (unsigned i = 0; i < 60; i += 2) pieces[i].reset();
  for (unsigned i = 3; i < 60; i += 2) wrong += (*pieces[i])[0] != 1000;
  CHECK(wrong == 0);

  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUgraphNode node = nullptr;
  OK(CU(cuGraphCreate)(&graph, 0));
  CUdeviceptr words = pieces[59]->address();
  unsigned count = 10, factor = 1, addend = 5;
  void* parameters[] = {&words, &count, &factor, &addend};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = transform;
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.blockDimX = 32;
  kernel.kernelParams = parameters;
  OK(CU(cuGraphAddKernelNode)(&node, graph, nullptr, 0, &kernel));
  OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
  for (unsigned round = 1; round <= 5; ++round) {
    (*pieces[59])[3] = round;
    OK(CU(cuGraphLaunch)(exec, nullptr));
    before_touch();
    CHECK((*pieces[59])[3] == round + 5);
  }
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
}
