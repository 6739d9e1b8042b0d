// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/device.hpp"

// The fatbin that nvcc made of bench_kernels.cu.
asm(".section .rodata\n.balign 16\nmpsshim_bench_image:\n.incbin \"" MPSSHIM_BENCH_FATBIN "\"\n.byte 0\n.text\n");
extern "C" const unsigned char mpsshim_bench_image[];

namespace mpsshim::bench {

void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  fail(std::string(call) + " returned " + (name == nullptr ? "an unknown error" : name) + " (" + std::to_string(static_cast<int>(result)) + ")");
}

const void* shared_image() { return mpsshim_bench_image; }

std::string fresh_image(std::uint64_t number) {
  const std::string constant = std::to_string(number & 0x7fffffff);
  return R"(.version 7.0
.target sm_52
.address_size 64
.visible .entry count(.param .u64 counter, .param .u32 step)
{
  .reg .u64 %rd<3>;
  .reg .u32 %r<5>;
  ld.param.u64 %rd1, [counter];
  cvta.to.global.u64 %rd2, %rd1;
  ld.param.u32 %r1, [step];
  ld.volatile.global.u32 %r2, [%rd2];
  add.u32 %r3, %r2, )" +
         constant + R"(;
  st.volatile.global.u32 [%rd2], %r3;
  ld.volatile.global.u32 %r4, [%rd2];
  sub.u32 %r4, %r4, )" +
         constant + R"(;
  add.u32 %r4, %r4, %r1;
  st.volatile.global.u32 [%rd2], %r4;
  ret;
}
)";
}

Device::Device(std::uint64_t image, bool launches_first) {
  CUdevice device = 0;
  MPSSHIM_CHECK(cuInit(0));
  MPSSHIM_CHECK(cuDeviceGet(&device, 0));
  MPSSHIM_CHECK(cuDevicePrimaryCtxRetain(&context, device));
  MPSSHIM_CHECK(cuCtxSetCurrent(context));
  const std::string text = image == 0 ? std::string() : fresh_image(image);
  MPSSHIM_CHECK(cuModuleLoadData(&module, image == 0 ? shared_image() : text.c_str()));
  MPSSHIM_CHECK(cuModuleGetFunction(&count, module, "count"));
  if (image == 0) {
    MPSSHIM_CHECK(cuModuleGetFunction(&count_once, module, "count_once"));
    MPSSHIM_CHECK(cuModuleGetFunction(&occupy, module, "occupy"));
    MPSSHIM_CHECK(cuModuleGetFunction(&endless, module, "endless"));
    MPSSHIM_CHECK(cuModuleGetFunction(&wild_store, module, "wild_store"));
  }
  MPSSHIM_CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MPSSHIM_CHECK(cuMemAlloc(&counter, sizeof(unsigned)));
  MPSSHIM_CHECK(cuMemsetD32Async(counter, 0, 1, stream));
  if (launches_first) launch_count(1);
  synchronize();
}

void Device::launch_count(unsigned step) {
  void* arguments[] = {&counter, &step};
  MPSSHIM_CHECK(cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
  expected += step;
}

void Device::launch_in_cluster(unsigned step) {
  constexpr unsigned kBlocks = 2;
  void* arguments[] = {&counter, &step};
  CUlaunchAttribute cluster{};
  cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  cluster.value.clusterDim = {kBlocks, 1, 1};
  const CUlaunchConfig config{kBlocks, 1, 1, 1, 1, 1, 0, stream, &cluster, 1};
  MPSSHIM_CHECK(cuLaunchKernelEx(&config, count_once, arguments, nullptr));
  expected += step;
}

bool Device::has_clusters() {
  int has_clusters = 0;
  return cuDeviceGetAttribute(&has_clusters, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 0) == CUDA_SUCCESS && has_clusters != 0;
}

void Device::launch_occupy(unsigned blocks, unsigned threads, std::uint64_t duration_ns) {
  void* arguments[] = {&counter, &duration_ns};
  MPSSHIM_CHECK(cuLaunchKernel(occupy, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr));
  expected += 1;
}

void Device::require_counted() const {
  unsigned value = 0;
  MPSSHIM_CHECK(cuMemcpyDtoH(&value, counter, sizeof value));
  if (value != expected) fail("wrong result: " + std::to_string(expected) + " launches counted to " + std::to_string(value));
}

}  // namespace mpsshim::bench
