// SPDX-License-Identifier: Apache-2.0
// The switches of the CPU device. They are read once, so each case is a process of its own.
#include <cstdlib>
#include <thread>

#include "loaded_image.hpp"

using namespace mpsshim::test;
using namespace std::chrono_literals;

namespace {

int attribute(CUdevice_attribute which) {
  int value = -1;
  OK(CU(cuDeviceGetAttribute)(&value, which, 0));
  return value;
}

int run_case_with(const char* variable, const char* value, const char* name) {
  setenv(variable, value, 1);
  const int status = run_case(name);
  unsetenv(variable);
  return status;
}

}  // namespace

TEST_CASE("child: is of capability 9.0", "[.]") {
  const DeviceContext context;
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) == 9);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) == 0);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) == 227 * 1024);
}
TEST_CASE("child: is of capability 7.5", "[.]") {
  const DeviceContext context;
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) == 7);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) == 5);
}
TEST_CASE("child: has 64 MiB", "[.]") {
  const DeviceContext context;
  CUdeviceptr half = 0;
  CUdeviceptr more = 0;
  OK(CU(cuMemAlloc)(&half, size_t{33} << 20));
  CHECK(CU(cuMemAlloc)(&more, size_t{33} << 20) == CUDA_ERROR_OUT_OF_MEMORY);
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle handle = 0;
  CHECK(CU(cuMemCreate)(&handle, size_t{32} << 20, &prop, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  OK(CU(cuMemFree)(half));
  OK(CU(cuMemCreate)(&handle, size_t{64} << 20, &prop, 0));
}
TEST_CASE("child: frees beside a running kernel", "[.]") {
  const DeviceContext context;
  const LoadedImage image;
  void* pinned = nullptr;
  OK(CU(cuMemHostAlloc)(&pinned, 4096, 0));
  CUdeviceptr victim = 0;
  OK(CU(cuMemAlloc)(&victim, 4096));
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  OK(launch(image.function("spin"), stream, 1, 1, reinterpret_cast<CUdeviceptr>(pinned)));
  std::this_thread::sleep_for(50ms);
  OK(CU(cuMemFree)(victim));  // would never return if it waited: only the next line ends the kernel
  *static_cast<volatile unsigned*>(pinned) = 1;
  OK(CU(cuStreamSynchronize)(stream));
}

TEST_CASE("the environment shapes the device") {
  if (!is_cpu_driver()) MPSSHIM_SKIP("about the CPU device");
  CHECK(run_case_with("MPSSHIM_CPU_COMPUTE_CAPABILITY", "9.0", "child: is of capability 9.0") == 0);
  CHECK(run_case_with("MPSSHIM_CPU_COMPUTE_CAPABILITY", "13.0", "child: is of capability 7.5") == 0);
  CHECK(run_case("child: is of capability 7.5") == 0);
  CHECK(run_case_with("MPSSHIM_CPU_MEMORY_MIB", "64", "child: has 64 MiB") == 0);
  CHECK(run_case_with("MPSSHIM_CPU_RELAXED", "1", "child: frees beside a running kernel") == 0);
}
