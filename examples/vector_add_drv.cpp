// SPDX-License-Identifier: Apache-2.0
// Adds two vectors through the driver API alone: linked with -lcuda, its kernel is the PTX below.
#include <cuda.h>

#include <vector>

#include "verify.hpp"

#define CU_CHECK(call)                                                                                                                         \
  do {                                                                                                                                         \
    const CUresult status_ = (call);                                                                                                           \
    if (status_ != CUDA_SUCCESS) {                                                                                                             \
      const char* name_ = nullptr;                                                                                                             \
      const char* text_ = nullptr;                                                                                                             \
      (void)cuGetErrorName(status_, &name_);                                                                                                   \
      (void)cuGetErrorString(status_, &text_);                                                                                                 \
      std::fprintf(stderr, "%s:%d: %s failed: %s (%s, %d)\n", __FILE__, __LINE__, #call, text_ ? text_ : "no text", name_ ? name_ : "no name", \
                   static_cast<int>(status_));                                                                                                 \
      std::exit(EXIT_FAILURE);                                                                                                                 \
    }                                                                                                                                          \
  } while (false)

namespace {

// c[i] = a[i] + b[i] for i < count; PTX of an old version and target, so that any driver takes it.
constexpr char kVectorAddPtx[] = R"ptx(
.version 7.0
.target sm_52
.address_size 64

.visible .entry vector_add(
    .param .u64 a,
    .param .u64 b,
    .param .u64 c,
    .param .u32 count)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<11>;

    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;

    cvta.to.global.u64 %rd4, %rd1;
    cvta.to.global.u64 %rd5, %rd2;
    cvta.to.global.u64 %rd6, %rd3;
    mul.wide.u32 %rd7, %r5, 4;
    add.s64 %rd8, %rd4, %rd7;
    add.s64 %rd9, %rd5, %rd7;
    add.s64 %rd10, %rd6, %rd7;
    ld.global.f32 %f1, [%rd8];
    ld.global.f32 %f2, [%rd9];
    add.rn.f32 %f3, %f1, %f2;
    st.global.f32 [%rd10], %f3;
DONE:
    ret;
}
)ptx";

CUdeviceptr upload(const std::vector<float>& values) {
  CUdeviceptr pointer = 0;
  const size_t size_bytes = values.size() * sizeof(float);
  CU_CHECK(cuMemAlloc(&pointer, size_bytes));
  CU_CHECK(cuMemcpyHtoD(pointer, values.data(), size_bytes));
  return pointer;
}

}  // namespace

int main(int argc, char** argv) {
  auto count = static_cast<unsigned>(example::number_argument(argc, argv, "vector_add_drv [count]", 100000, 1, 1 << 28));
  std::vector<float> a(count), b(count), c(count, -1.0f);
  for (unsigned i = 0; i < count; ++i) {
    a[i] = static_cast<float>(i % 4096);
    b[i] = static_cast<float>(i % 1000) * 0.25f;
  }

  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  char device_name[256] = "";
  CU_CHECK(cuInit(0));
  CU_CHECK(cuDeviceGet(&device, 0));
  CU_CHECK(cuDeviceGetName(device_name, sizeof device_name, device));
  CU_CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CU_CHECK(cuCtxSetCurrent(context));
  CU_CHECK(cuModuleLoadData(&module, kVectorAddPtx));
  CU_CHECK(cuModuleGetFunction(&function, module, "vector_add"));

  CUdeviceptr device_a = upload(a);
  CUdeviceptr device_b = upload(b);
  CUdeviceptr device_c = upload(c);
  void* arguments[] = {&device_a, &device_b, &device_c, &count};
  const unsigned threads = 128;
  CU_CHECK(cuLaunchKernel(function, (count + threads - 1) / threads, 1, 1, threads, 1, 1, 0, nullptr, arguments, nullptr));
  CU_CHECK(cuCtxSynchronize());
  CU_CHECK(cuMemcpyDtoH(c.data(), device_c, count * sizeof(float)));
  example::require_equal("vector_add_drv", c.data(), count, [&](size_t i) { return a[i] + b[i]; });

  CU_CHECK(cuMemFree(device_a));
  CU_CHECK(cuMemFree(device_b));
  CU_CHECK(cuMemFree(device_c));
  CU_CHECK(cuModuleUnload(module));
  CU_CHECK(cuDevicePrimaryCtxRelease(device));
  std::printf("vector_add_drv: %u sums on \"%s\" right.\n", count, device_name);
  return 0;
}
