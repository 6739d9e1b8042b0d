// SPDX-License-Identifier: Apache-2.0
// What a kernel's fault does to the context: each in a process of its own, since there is no way back.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <thread>
#include <utility>

#include "broken_code.hpp"
#include "loaded_image.hpp"

using namespace mpsshim::test;

namespace {

// After the fault `error` of a launch: that and nothing else is what every call says, again and again, here and in other threads.
void expect_dead(const DeviceContext& context, const LoadedImage& image, CUresult error) {
  // Through the broker a wait may return just before the driver tells of a misaligned access (docs/reliability.md).
  const bool may_be_late = driver_kind() == DriverKind::forwarded && error == CUDA_ERROR_MISALIGNED_ADDRESS && !is_cpu_device();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (may_be_late && CU(cuCtxSynchronize)() == CUDA_SUCCESS && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  CHECK(CU(cuCtxSynchronize)() == error);
  for (int turn = 0; turn < 2; ++turn) {
    CHECK(CU(cuStreamSynchronize)(nullptr) == error);
    CHECK(CU(cuStreamQuery)(nullptr) == error);
    CUdeviceptr address = 0;
    CHECK(CU(cuMemAlloc)(&address, 4096) == error);
    CUevent event = nullptr;
    CHECK(CU(cuEventCreate)(&event, 0) == error);
    CUmodule module = nullptr;
    CHECK(CU(cuModuleLoadData)(&module, image.content().data()) == error);
  }
  CUresult elsewhere = CUDA_SUCCESS;
  std::thread([&] {
    CUdeviceptr address = 0;
    CU(cuCtxSetCurrent)(context.handle());
    elsewhere = CU(cuMemAlloc)(&address, 4096);
  }).join();
  CHECK(elsewhere == error);
  CUcontext current = nullptr;
  CHECK(CU(cuCtxGetCurrent)(&current) == CUDA_SUCCESS);  // touches no device
}

// For what devices answer differently: one of `known`, said in the test's output so that it can be looked up which.
void expect_dead_by_one_of(const DeviceContext& context, const LoadedImage& image, const char* what, std::initializer_list<CUresult> known) {
  const CUresult seen = CU(cuCtxSynchronize)();
  const char* name = nullptr;
  CU(cuGetErrorName)(seen, &name);
  char device[128] = "";
  CU(cuDeviceGetName)(device, sizeof device, 0);
  std::printf("recorded: %s on %s: %d %s\n", what, device, static_cast<int>(seen), name == nullptr ? "(no name)" : name);
  CHECK(std::find(known.begin(), known.end(), seen) != known.end());
  expect_dead(context, image, seen);
}

// What the process writes to standard error until text() is called.
class StandardError {
 public:
  StandardError() : kept_(dup(STDERR_FILENO)), file_(memfd_create("stderr", 0)) { dup2(file_, STDERR_FILENO); }
  ~StandardError() { close(file_); }
  StandardError(const StandardError&) = delete;
  StandardError& operator=(const StandardError&) = delete;
  std::string text() {
    if (kept_ >= 0) dup2(kept_, STDERR_FILENO);
    if (kept_ >= 0) close(std::exchange(kept_, -1));
    char buffer[4096];
    const ssize_t got = pread(file_, buffer, sizeof buffer, 0);
    return {buffer, static_cast<std::size_t>(got < 0 ? 0 : got)};
  }

 private:
  int kept_;
  int file_;
};

}  // namespace

TEST_CASE("child: illegal address", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  OK(launch(image.function("write_through"), nullptr, 1, 1, CUdeviceptr{0x700000000000}));
  expect_dead(context, image, CUDA_ERROR_ILLEGAL_ADDRESS);
}
TEST_CASE("child: illegal address of the host", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  // No address of the stack: through a broker, the executor's windows of shared and local memory may lie there.
  static int of_the_host = 0;
  OK(launch(image.function("write_through"), nullptr, 1, 1, &of_the_host));
  expect_dead(context, image, CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(of_the_host == 0);
}
TEST_CASE("child: misaligned address", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  DeviceArray<int> memory(4);
  OK(launch(image.function("misalign"), nullptr, 1, 1, memory.address()));
  expect_dead(context, image, CUDA_ERROR_MISALIGNED_ADDRESS);
}
TEST_CASE("child: trap", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  OK(launch(image.function("trap"), nullptr, 1, 1));
  expect_dead(context, image, CUDA_ERROR_LAUNCH_FAILED);
}
TEST_CASE("child: assertion", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  OK(launch(image.function("assert_false"), nullptr, 1, 1, 0));
  expect_dead(context, image, CUDA_ERROR_ASSERT);
}
TEST_CASE("child: assertion's text", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  StandardError errors;
  OK(launch(image.function("assert_false"), nullptr, 1, 1, 0));
  CHECK(CU(cuCtxSynchronize)() == CUDA_ERROR_ASSERT);
  const std::string text = errors.text();
  INFO(text);
  CHECK(text.find("kernels.cu:") != std::string::npos);
  CHECK(text.find("block: [0,0,0], thread: [0,0,0] Assertion `zero != 0` failed.") != std::string::npos);
}
TEST_CASE("child: illegal address that is read", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  DeviceArray<int> out(1);
  OK(launch(image.function("read_through"), nullptr, 1, 1, CUdeviceptr{0x700000000000}, out.address()));
  expect_dead(context, image, CUDA_ERROR_ILLEGAL_ADDRESS);
}
TEST_CASE("child: illegal address that is added to", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  OK(launch(image.function("add_through"), nullptr, 1, 1, CUdeviceptr{0x700000000000}));
  expect_dead(context, image, CUDA_ERROR_ILLEGAL_ADDRESS);
}
TEST_CASE("child: shared memory beyond its end", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  OK(launch(image.function("write_shared"), nullptr, 1, 1, 1u << 20));
  expect_dead_by_one_of(context, image, "shared memory beyond its end", {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED});
}
TEST_CASE("child: stack overflow", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  DeviceArray<unsigned> sum(1);
  OK(launch(image.function("recurse"), nullptr, 1, 1, 2u, sum.address()));
  OK(CU(cuCtxSynchronize)());
  CHECK(sum[0] == 3);
  OK(launch(image.function("recurse"), nullptr, 1, 1, 1'000'000u, sum.address()));
  expect_dead_by_one_of(context, image, "stack overflow",
                        {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_LAUNCH_FAILED});
}
TEST_CASE("child: call of what is no function", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  OK(launch(image.function("call_through"), nullptr, 1, 1, CUdeviceptr{0x700000000000}));
  expect_dead_by_one_of(context, image, "call of what is no function",
                        {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_PC, CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_LAUNCH_FAILED});
}
TEST_CASE("child: illegal instruction", "[.]") {
  const DeviceContext context;
  if (is_cpu_device()) {  // it runs no machine code; a barrier for half a warp is what it has instead
    const LoadedImage image;
    OK(launch(image.function("odd_barrier"), nullptr, 1, 64, 33));
    return expect_dead(context, image, CUDA_ERROR_ILLEGAL_INSTRUCTION);
  }
  if (!std::filesystem::exists(MPSSHIM_TEST_IMAGES "/machine_code.cubin")) {
    MPSSHIM_SKIP("no machine code for this GPU: configure with -DMPSSHIM_CUDA_ARCH=sm_90 or the like, as scripts/test --gpu does");
  }
  std::string cubin = read_image("machine_code.cubin");
  REQUIRE(break_code(cubin, "trap"));
  const LoadedImage image(std::move(cubin), LoadedImage::Content{});
  OK(launch(image.function("trap"), nullptr, 1, 1));
  expect_dead(context, image, CUDA_ERROR_ILLEGAL_INSTRUCTION);
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
  CHECK(run_case("child: illegal address that is read") == 0);
  CHECK(run_case("child: illegal address that is added to") == 0);
}

// Few each: after five deaths of its executor within ten seconds a broker pauses on purpose.
TEST_CASE("misalignment and traps end the context with their own error", "[forwarded]") {
  CHECK(run_case("child: misaligned address") == 0);
  CHECK(run_case("child: trap") == 0);
  CHECK(run_case("child: assertion") == 0);
}

TEST_CASE("overruns end the context with their own error", "[forwarded]") {
  CHECK(run_case("child: shared memory beyond its end") == 0);
  CHECK(run_case("child: stack overflow") == 0);
  CHECK(run_case("child: call of what is no function") == 0);
}

TEST_CASE("an illegal instruction ends the context with its own error", "[forwarded]") { CHECK(run_case("child: illegal instruction") == 0); }

TEST_CASE("the text of a failed assertion comes on standard error", "[forwarded]") { CHECK(run_case("child: assertion's text") == 0); }

TEST_CASE("a fault ends the kernels and waits of others") { CHECK(run_case("child: a fault ends the kernels and waits of others") == 0); }
