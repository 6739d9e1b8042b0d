// SPDX-License-Identifier: Apache-2.0
// Grids launched by kernels (CUDA Programming Guide, "CUDA Dynamic Parallelism"): linked at run time with the toolkit's libcudadevrt.a.
#include <string>
#include <vector>

#include "loaded_image.hpp"

using namespace mpsshim::test;

namespace {

std::string linked_grids() {
  CUlinkState state = nullptr;
  OK(CU(cuLinkCreate)(0, nullptr, nullptr, &state));
  OK(CU(cuLinkAddFile)(state, CU_JIT_INPUT_PTX, MPSSHIM_TEST_IMAGES "/grids.ptx", 0, nullptr, nullptr));
  OK(CU(cuLinkAddFile)(state, CU_JIT_INPUT_LIBRARY, MPSSHIM_DEVICE_RUNTIME, 0, nullptr, nullptr));
  void* cubin = nullptr;
  size_t size = 0;
  OK(CU(cuLinkComplete)(state, &cubin, &size));
  std::string image(static_cast<const char*>(cubin), size);
  OK(CU(cuLinkDestroy)(state));
  return image;
}

struct Grids {
  DeviceContext context;
  LoadedImage image{linked_grids(), LoadedImage::Content{}};
};

}  // namespace

TEST_CASE("a launch is complete when all that its kernels have launched is", "[forwarded]") {
  const Grids grids;
  const DeviceArray<unsigned> sum(1);
  OK(launch(grids.image.function("spread"), nullptr, 1, 32, sum.address(), 4u));
  OK(CU(cuStreamSynchronize)(nullptr));
  CHECK(sum[0] == 16 * 64);
  // And so is an event behind it.
  CUevent event = nullptr;
  OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
  OK(launch(grids.image.function("spread"), nullptr, 1, 32, sum.address(), 4u));
  OK(CU(cuEventRecord)(event, nullptr));
  OK(CU(cuEventSynchronize)(event));
  CHECK(sum[0] == 2 * 16 * 64);
  OK(CU(cuEventDestroy)(event));
}

TEST_CASE("tail launches come behind all else that their grid has launched, in order", "[forwarded]") {
  const Grids grids;
  const DeviceArray<unsigned> sum(1);
  const DeviceArray<unsigned> seen(2);
  OK(launch(grids.image.function("looks_last"), nullptr, 1, 1, sum.address(), seen.address()));
  OK(CU(cuCtxSynchronize)());
  CHECK(seen[0] == 3 * 128);
  CHECK(seen[1] == 3 * 128 + 1000);
}

TEST_CASE("copies and fills that a kernel asks for", "[forwarded]") {
  const Grids grids;
  const DeviceArray<unsigned> from(2);
  OK(CU(cuMemsetD32)(from.address(), 7, 1));
  OK(CU(cuMemsetD32)(from.address() + 4, 8, 1));
  const DeviceArray<unsigned> to(6);
  OK(CU(cuMemsetD32)(to.address(), 0x11111111, 6));
  const DeviceArray<unsigned> errors(3);
  OK(launch(grids.image.function("moves"), nullptr, 1, 1, to.address(), from.address(), 4u, errors.address()));
  OK(CU(cuCtxSynchronize)());
  CHECK(errors[0] == 0);
  CHECK(errors[1] == 0);
  CHECK(errors[2] == 0);
  CHECK(to[0] == 0);
  CHECK(to[1] == 12);
  CHECK(to[2] == 8);
  CHECK(to[3] == 0);
  CHECK(to[4] == 0x11111111);
}

TEST_CASE("what the device runtime says of the device and of kernels", "[forwarded]") {
  const Grids grids;
  const DeviceArray<int> out(8);
  OK(launch(grids.image.function("facts"), nullptr, 1, 1, out.address()));
  OK(CU(cuCtxSynchronize)());
  int devices = 0;
  OK(CU(cuDeviceGetCount)(&devices));
  CHECK(out[0] == 0);
  CHECK(out[1] == devices);
  CHECK(out[2] == 0);
  CHECK(out[3] == 32);
  CHECK(out[4] == 0);
  CHECK(out[5] == 0);
  CHECK(out[6] == 1024);
}

TEST_CASE("child: a grid that a kernel has launched faults", "[.]") {
  const Grids grids;
  OK(launch(grids.image.function("misleads"), nullptr, 1, 1, CUdeviceptr{0x1000}));
  CHECK(CU(cuCtxSynchronize)() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("a fault of a grid that a kernel has launched ends the context", "[forwarded]") {
  CHECK(run_case("child: a grid that a kernel has launched faults") == 0);
}
