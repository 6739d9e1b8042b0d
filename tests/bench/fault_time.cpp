// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/device.hpp"
#include "tests/bench/measures.hpp"

namespace mpsshim::bench {

namespace {

constexpr std::size_t kChunkBytes = 2 << 20;
constexpr int kChunks = 8;
constexpr unsigned kGiveUpSeconds = 30;  // a process that waits longer has failed; SIGALRM ends it

// Shared by the two processes; times are steady-clock nanoseconds, which all processes of a machine share.
struct Stage {
  std::atomic<int> ready{0};
  std::atomic<long long> fault_ns{0};
  std::atomic<long long> done_ns{0};
};

long long now_ns() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

void wait_until_both_ready(Stage& stage) {
  ++stage.ready;
  while (stage.ready < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

[[noreturn]] void guilty(Stage& stage) {
  alarm(kGiveUpSeconds);
  const Device device;
  device.launch_count(1);
  device.synchronize();
  wait_until_both_ready(stage);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the bystander is idle by now
  CUdeviceptr nowhere = 0x10;
  void* arguments[] = {&nowhere};
  stage.fault_ns = now_ns();
  const CUresult launched = cuLaunchKernel(device.wild_store, 1, 1, 1, 1, 1, 1, 0, device.stream, arguments, nullptr);
  const CUresult seen = launched == CUDA_SUCCESS ? cuStreamSynchronize(device.stream) : launched;
  if (seen != CUDA_ERROR_ILLEGAL_ADDRESS) std::fprintf(stderr, "mpsbench: the guilty client saw error %d, not 700\n", static_cast<int>(seen));
  _exit(seen == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 1);
}

[[noreturn]] void bystander(Stage& stage) {
  alarm(kGiveUpSeconds);
  const Device device;
  std::vector<CUdeviceptr> chunks(kChunks);
  std::vector<unsigned> content(kChunkBytes / sizeof(unsigned));
  for (int i = 0; i < kChunks; ++i) {
    for (std::size_t word = 0; word < content.size(); ++word) content[word] = static_cast<unsigned>(word * 2654435761u + static_cast<unsigned>(i));
    MPSSHIM_CHECK(cuMemAlloc(&chunks[static_cast<std::size_t>(i)], kChunkBytes));
    MPSSHIM_CHECK(cuMemcpyHtoD(chunks[static_cast<std::size_t>(i)], content.data(), kChunkBytes));
  }
  device.launch_count(5);
  device.synchronize();
  wait_until_both_ready(stage);
  while (stage.fault_ns == 0) std::this_thread::yield();
  while (now_ns() < stage.fault_ns + 10'000'000) std::this_thread::yield();
  device.launch_count(2);
  device.synchronize();
  stage.done_ns = now_ns();
  bool intact = device.counter_value() == 7;
  for (int i = 0; i < kChunks; ++i) {
    MPSSHIM_CHECK(cuMemcpyDtoH(content.data(), chunks[static_cast<std::size_t>(i)], kChunkBytes));
    for (std::size_t word = 0; word < content.size(); ++word) intact &= content[word] == static_cast<unsigned>(word * 2654435761u + static_cast<unsigned>(i));
  }
  if (!intact) std::fprintf(stderr, "mpsbench: the bystander's memory changed\n");
  _exit(intact ? 0 : 1);
}

bool succeeded(pid_t child) {
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

double fault_to_bystander_us() {
  void* memory = mmap(nullptr, sizeof(Stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return -1;
  auto* stage = new (memory) Stage();
  const pid_t guilty_child = fork();
  if (guilty_child == 0) guilty(*stage);
  const pid_t bystander_child = fork();
  if (bystander_child == 0) bystander(*stage);
  const bool guilty_as_expected = succeeded(guilty_child);
  const bool bystander_intact = succeeded(bystander_child);
  const double elapsed_us = static_cast<double>(stage->done_ns - stage->fault_ns) / 1e3;
  munmap(memory, sizeof(Stage));
  return guilty_as_expected && bystander_intact ? elapsed_us : -1;
}

}  // namespace mpsshim::bench
