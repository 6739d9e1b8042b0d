// SPDX-License-Identifier: Apache-2.0
// What a kernel's fault does to the context: each in a process of its own, since there is no way back.
#include <atomic>
#include <chrono>
#include <thread>

#include "loaded_image.hpp"

using namespace mpsshim::test;
using namespace std::chrono_literals;

namespace {

// After the fault `error` of a launch: that and nothing else is what every call says, here and in other threads.
void expect_dead(const DeviceContext& context, CUresult error) {
  CHECK(CU(cuCtxSynchronize)() == error);
  CHECK(CU(cuStreamSynchronize)(nullptr) == error);
  CHECK(CU(cuStreamQuery)(nullptr) == error);
  CUdeviceptr address = 0;
  CHECK(CU(cuMemAlloc)(&address, 4096) == error);
  CUevent event = nullptr;
  CHECK(CU(cuEventCreate)(&event, 0) == error);
  CUresult elsewhere = CUDA_SUCCESS;
  std::thread([&] {
    CU(cuCtxSetCurrent)(context.handle());
    elsewhere = CU(cuMemAlloc)(&address, 4096);
  }).join();
  CHECK(elsewhere == error);
  CUcontext current = nullptr;
  CHECK(CU(cuCtxGetCurrent)(&current) == CUDA_SUCCESS);  // touches no device
}

}  // namespace

TEST_CASE("child: illegal address", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  OK(launch(image.function("write_through"), nullptr, 1, 1, CUdeviceptr{0x700000000000}));
  expect_dead(context, CUDA_ERROR_ILLEGAL_ADDRESS);
}
TEST_CASE("child: illegal address of the host", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  // No address of the stack: through a broker, the executor's windows of shared and local memory may lie there.
  static int of_the_host = 0;
  OK(launch(image.function("write_through"), nullptr, 1, 1, &of_the_host));
  expect_dead(context, CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(of_the_host == 0);
}
TEST_CASE("child: misaligned address", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  DeviceArray<int> memory(4);
  OK(launch(image.function("misalign"), nullptr, 1, 1, memory.address()));
  expect_dead(context, CUDA_ERROR_MISALIGNED_ADDRESS);
}
TEST_CASE("child: trap", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  OK(launch(image.function("trap"), nullptr, 1, 1));
  expect_dead(context, CUDA_ERROR_LAUNCH_FAILED);
}
TEST_CASE("child: assertion", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  OK(launch(image.function("assert_false"), nullptr, 1, 1, 0));
  expect_dead(context, CUDA_ERROR_ASSERT);
}
TEST_CASE("child: a fault ends the kernels and waits of others", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction spin = image.function("spin");  // both before anything runs: see test_streams.cpp
  const CUfunction trap = image.function("trap");
  void* pinned = nullptr;
  OK(CU(cuMemHostAlloc)(&pinned, 4096, 0));
  const auto never = reinterpret_cast<CUdeviceptr>(pinned);
  CUstream spinning = nullptr;
  CUstream waiting = nullptr;
  CUstream guilty = nullptr;
  for (CUstream* stream : {&spinning, &waiting, &guilty}) OK(CU(cuStreamCreate)(stream, CU_STREAM_NON_BLOCKING));
  OK(launch(spin, spinning, 1, 1, never));
  OK(CU(cuStreamWaitValue32)(waiting, never, 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(launch(trap, guilty, 1, 1));
  CHECK(CU(cuStreamSynchronize)(spinning) == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(CU(cuStreamSynchronize)(waiting) == CUDA_ERROR_LAUNCH_FAILED);
}

TEST_CASE("faults of kernels end the context with their own error", "[forwarded]") {
  CHECK(run_case("child: illegal address") == 0);
  CHECK(run_case("child: illegal address of the host") == 0);
  CHECK(run_case("child: misaligned address") == 0);
  CHECK(run_case("child: trap") == 0);
  CHECK(run_case("child: assertion") == 0);
}

TEST_CASE("a fault ends the kernels and waits of others") { CHECK(run_case("child: a fault ends the kernels and waits of others") == 0); }
