// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/device.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

// The fatbin that nvcc made of bench_kernels.cu.
asm(".section .rodata\n.balign 16\nmpsshim_bench_image:\n.incbin \"" MPSSHIM_BENCH_FATBIN "\"\n.byte 0\n.text\n");
extern "C" const unsigned char mpsshim_bench_image[];

namespace mpsshim::bench {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  std::fprintf(stderr, "mpsbench: %s returned %s (%d)\n", call, name == nullptr ? "an unknown error" : name, static_cast<int>(result));
  std::exit(1);
}

Device::Device() {
  CUdevice device = 0;
  MPSSHIM_CHECK(cuInit(0));
  MPSSHIM_CHECK(cuDeviceGet(&device, 0));
  MPSSHIM_CHECK(cuDevicePrimaryCtxRetain(&context, device));
  MPSSHIM_CHECK(cuCtxSetCurrent(context));
  MPSSHIM_CHECK(cuModuleLoadData(&module, mpsshim_bench_image));
  MPSSHIM_CHECK(cuModuleGetFunction(&count, module, "count"));
  MPSSHIM_CHECK(cuModuleGetFunction(&wild_store, module, "wild_store"));
  MPSSHIM_CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MPSSHIM_CHECK(cuMemAlloc(&counter, sizeof(unsigned)));
  MPSSHIM_CHECK(cuMemsetD32Async(counter, 0, 1, stream));
  synchronize();
}

void Device::launch_count(unsigned step) const {
  CUdeviceptr pointer = counter;
  void* arguments[] = {&pointer, &step};
  MPSSHIM_CHECK(cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
}

unsigned Device::counter_value() const {
  unsigned value = 0;
  MPSSHIM_CHECK(cuMemcpyDtoH(&value, counter, sizeof value));
  return value;
}

}  // namespace mpsshim::bench
