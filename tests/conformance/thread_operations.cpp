// SPDX-License-Identifier: Apache-2.0
// What the operations are made on: the objects of all threads, and those of each. The operations stand in thread_*_operations.cpp.
#include "thread_operations.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "thread_steps.hpp"

namespace mpsshim::test {

std::span<const Operation> thread_operations() {
  static const std::vector<Operation> all = [] {
    std::vector<Operation> joined;
    for (const auto part : {stream_operations(), memory_operations(), object_operations(), context_operations()}) {
      joined.insert(joined.end(), part.begin(), part.end());
    }
    return joined;
  }();
  return all;
}

SharedObjects::SharedObjects() {
  OK(CU(cuMemsetD32)(pattern.address(), kPattern, kPatternWords));
  for (size_t i = 0; i < streams.size(); ++i) streams[i] = new_stream(i + 1 == streams.size() ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
  for (CUevent& event : events) {
    event = new_event();
    OK(CU(cuEventRecord)(event, streams[0]));
  }
  OK(CU(cuGraphCreate)(&graph, 0));
  CUdeviceptr address = sum.address();
  unsigned one = 1;
  void* arguments[] = {&address, &one};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = add_to;
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.kernelParams = arguments;
  CUgraphNode node = nullptr;
  OK(CU(cuGraphAddKernelNode)(&node, graph, nullptr, 0, &kernel));
  OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
  OK(CU(cuCtxSynchronize)());
}

SharedObjects::~SharedObjects() {
  CU(cuGraphExecDestroy)(exec);
  CU(cuGraphDestroy)(graph);
  for (const CUevent event : events) CU(cuEventDestroy)(event);
  for (const CUstream stream : streams) CU(cuStreamDestroy)(stream);
}

void SharedObjects::settle(Findings& findings) {
  const auto expect = [&](CUresult status, const char* call) {
    if (status != CUDA_SUCCESS) findings.add(std::string(call) + " at the end: " + std::to_string(status));
  };
  while (const auto stream = passed_streams.take()) expect(CU(cuStreamDestroy)(*stream), "cuStreamDestroy");
  while (const auto event = passed_events.take()) expect(CU(cuEventDestroy)(*event), "cuEventDestroy");
  expect(CU(cuCtxSynchronize)(), "cuCtxSynchronize");
  unsigned added = 0;
  expect(CU(cuMemcpyDtoH)(&added, sum.address(), sizeof added), "cuMemcpyDtoH");
  if (added != expected_sum) findings.add("kernels ran " + std::to_string(added) + " times, asked for " + std::to_string(expected_sum));
  if (host_calls != expected_host_calls) {
    findings.add("host functions ran " + std::to_string(host_calls) + " times, asked for " + std::to_string(expected_host_calls));
  }
  expected_sum = added;
  expected_host_calls = host_calls.load();
}

Worker::Worker(SharedObjects& all, Findings& found, unsigned seed) : shared(all), findings_(found), random_(seed) {
  stream = new_stream();
  OK(CU(cuMemAlloc)(&device, 2 * kBytes));
  void* host = nullptr;
  OK(CU(cuMemHostAlloc)(&host, kBytes, 0));
  pinned = static_cast<unsigned*>(host);
  pages = static_cast<unsigned*>(std::aligned_alloc(4096, kBytes));
  REQUIRE(pages != nullptr);
  std::memset(pages, 0, kBytes);
}

Worker::~Worker() {
  std::free(pages);
  CU(cuMemFreeHost)(pinned);
  CU(cuMemFree)(device);
  CU(cuStreamDestroy)(stream);
}

void Worker::wait() {
  for (const CUstream each : shared.streams) STEP(*this, cuStreamSynchronize, each);
  STEP(*this, cuStreamSynchronize, nullptr);
}

bool Worker::expect(CUresult status, std::initializer_list<CUresult> expected) {
  if (std::find(expected.begin(), expected.end(), status) != expected.end()) return true;
  findings_.add(std::string(operation) + ": " + call.load() + " returned " + std::to_string(status));
  return false;
}

void Worker::expect_words(std::span<const unsigned> words, unsigned value, const char* where) {
  const auto wrong = std::find_if(words.begin(), words.end(), [&](unsigned word) { return word != value; });
  if (wrong != words.end()) findings_.add(std::string(operation) + ": other words than were written, " + where);
}

bool Worker::add_one(CUstream to) {
  CUdeviceptr sum = shared.sum.address();
  unsigned one = 1;
  void* arguments[] = {&sum, &one};
  const CUfunction add_to = shared.add_to;
  if (!expect(DRIVER(*this, cuLaunchKernel, add_to, 1, 1, 1, 1, 1, 1, 0, to, arguments, nullptr))) return false;
  ++shared.expected_sum;
  return true;
}

}  // namespace mpsshim::test
