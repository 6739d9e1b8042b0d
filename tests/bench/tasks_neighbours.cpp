// SPDX-License-Identifier: Apache-2.0
// Tasks of clients that are hard to live beside.
#include <array>
#include <thread>

#include "tests/bench/tasks.hpp"

namespace mpsshim::bench {

namespace {

// Loads, launches once, checks. Returns the microseconds from before the load to the launch done.
double load_and_launch(Device& device, const void* image, CUmodule& module, CUdeviceptr counter) {
  const Clock::time_point start = Clock::now();
  CUfunction function = nullptr;
  unsigned step = 3;
  void* arguments[] = {&counter, &step};
  MPSSHIM_CHECK(cuModuleLoadData(&module, image));
  MPSSHIM_CHECK(cuModuleGetFunction(&function, module, "count"));
  MPSSHIM_CHECK(cuMemsetD32Async(counter, 0, 1, device.stream));
  MPSSHIM_CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, device.stream, arguments, nullptr));
  device.synchronize();
  const double elapsed_us = microseconds_since(start);
  unsigned value = 0;
  MPSSHIM_CHECK(cuMemcpyDtoH(&value, counter, sizeof value));
  if (value != step) fail("wrong result: a launch of a module just loaded counted to " + std::to_string(value) + ", not 3");
  return elapsed_us;
}

}  // namespace

void module_rounds(Work& work) {
  std::vector<double> samples;
  do {
    const Clock::time_point start = Clock::now();
    CUdeviceptr memory = 0;
    CUmodule module = nullptr;
    MPSSHIM_CHECK(cuMemAlloc(&memory, 64 << 10));
    load_and_launch(work.device, shared_image(), module, memory);
    MPSSHIM_CHECK(cuMemFree(memory));
    MPSSHIM_CHECK(cuModuleUnload(module));
    samples.push_back(microseconds_since(start));
    work.outcome.done += 1;
  } while (work.is_time_left());
  work.outcome.last_ns = now_ns();
  summarize(samples, work.outcome);
}

void fresh_images(Work& work) {
  std::vector<double> samples;
  CUdeviceptr memory = 0;
  MPSSHIM_CHECK(cuMemAlloc(&memory, sizeof(unsigned)));
  for (std::uint64_t number = static_cast<std::uint64_t>(work.order.argument[0]); work.is_time_left(); ++number) {
    const std::string image = fresh_image(number);
    CUmodule module = nullptr;
    samples.push_back(load_and_launch(work.device, image.c_str(), module, memory));
    MPSSHIM_CHECK(cuModuleUnload(module));
    work.outcome.done += 1;
    std::this_thread::sleep_for(std::chrono::nanoseconds(work.order.argument[1]));
  }
  MPSSHIM_CHECK(cuMemFree(memory));
  work.outcome.last_ns = now_ns();
  summarize(samples, work.outcome);
}

void endless_kernel(Work& work) {
  constexpr std::uint64_t kLimitNs = 60'000'000'000;
  void* memory = nullptr;
  CUdeviceptr stop = 0;
  MPSSHIM_CHECK(cuMemHostAlloc(&memory, sizeof(unsigned), CU_MEMHOSTALLOC_DEVICEMAP));
  MPSSHIM_CHECK(cuMemHostGetDevicePointer(&stop, memory, 0));
  auto& word = *static_cast<volatile unsigned*>(memory);
  word = 0;
  std::uint64_t limit_ns = kLimitNs;
  void* arguments[] = {&work.device.counter, &stop, &limit_ns};
  MPSSHIM_CHECK(cuLaunchKernel(work.device.endless, 1, 1, 1, 1, 1, 1, 0, work.device.stream, arguments, nullptr));
  work.device.expected += 1;
  while (work.is_time_left() && !work.is_cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  word = 1;
  work.device.synchronize();
  work.outcome.last_ns = now_ns();
  work.outcome.done = 1;
  work.device.require_counted();
  MPSSHIM_CHECK(cuMemFreeHost(memory));
}

void guilty(Work& work) {
  CUdeviceptr nowhere = 0x10;
  void* arguments[] = {&nowhere};
  const CUresult launched = cuLaunchKernel(work.device.wild_store, 1, 1, 1, 1, 1, 1, 0, work.device.stream, arguments, nullptr);
  const CUresult seen = launched == CUDA_SUCCESS ? cuStreamSynchronize(work.device.stream) : launched;
  if (seen != CUDA_ERROR_ILLEGAL_ADDRESS) fail("the guilty client saw error " + std::to_string(static_cast<int>(seen)) + ", not 700");
  work.outcome.done = 1;
}

void bystander(Work& work) {
  constexpr std::size_t kWords = (2 << 20) / sizeof(unsigned);
  std::array<CUdeviceptr, 8> chunks{};
  std::vector<unsigned> content(kWords);
  const auto word_of = [](std::size_t chunk, std::size_t i) { return static_cast<unsigned>(i * 2654435761u + chunk); };
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    for (std::size_t i = 0; i < kWords; ++i) content[i] = word_of(chunk, i);
    MPSSHIM_CHECK(cuMemAlloc(&chunks[chunk], kWords * sizeof(unsigned)));
    MPSSHIM_CHECK(cuMemcpyHtoD(chunks[chunk], content.data(), kWords * sizeof(unsigned)));
  }
  work.device.synchronize();
  if (now_ns() > work.order.begin_ns) fail("the bystander was not ready in time");
  wait_until(work.order.begin_ns + 10'000'000);
  work.device.launch_count(2);
  work.device.synchronize();
  work.outcome.last_ns = now_ns();
  work.device.require_counted();
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    MPSSHIM_CHECK(cuMemcpyDtoH(content.data(), chunks[chunk], kWords * sizeof(unsigned)));
    for (std::size_t i = 0; i < kWords; ++i) {
      if (content[i] != word_of(chunk, i)) fail("wrong result: the bystander's memory changed");
    }
  }
  work.outcome.done = 1;
}

}  // namespace mpsshim::bench
