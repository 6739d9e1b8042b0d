/* SPDX-License-Identifier: Apache-2.0
   A client for a C library that is older than the machine which builds it: it has its own start-up and needs nothing that glibc 2.2.5 did not have.
   Adds two vectors through the preloaded library and says on which C library. Ends with 0 if every sum is right. */
#include <cuda.h>
#include <gnu/libc-version.h>
#include <stdio.h>

enum { kCount = 4096 };

static const char kPtx[] =
    ".version 7.0\n.target sm_52\n.address_size 64\n"
    ".visible .entry add(.param .u64 a, .param .u64 b, .param .u64 sum) {\n"
    ".reg .b64 %d<8>;\n.reg .b32 %r<5>;\n.reg .f32 %f<4>;\n"
    "ld.param.u64 %d1, [a];\nld.param.u64 %d2, [b];\nld.param.u64 %d3, [sum];\n"
    "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\nmad.lo.s32 %r4, %r1, %r2, %r3;\nmul.wide.s32 %d4, %r4, 4;\n"
    "add.s64 %d5, %d1, %d4;\nadd.s64 %d6, %d2, %d4;\nadd.s64 %d7, %d3, %d4;\n"
    "ld.global.f32 %f1, [%d5];\nld.global.f32 %f2, [%d6];\nadd.f32 %f3, %f1, %f2;\nst.global.f32 [%d7], %f3;\nret;\n}\n";

static int failed(const char* call, CUresult result) {
  if (result != CUDA_SUCCESS) printf("%s: %d\n", call, (int)result);
  return result != CUDA_SUCCESS;
}
#define CHECK(call) \
  if (failed(#call, call)) return 1

static float first[kCount], second[kCount], sum[kCount];

static int run(void) {
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction function;
  CUdeviceptr memory[3];
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&module, kPtx));
  CHECK(cuModuleGetFunction(&function, module, "add"));
  for (int i = 0; i < 3; ++i) CHECK(cuMemAlloc(&memory[i], sizeof sum));
  for (int i = 0; i < kCount; ++i) {
    first[i] = (float)i;
    second[i] = (float)(2 * i);
  }
  CHECK(cuMemcpyHtoD(memory[0], first, sizeof first));
  CHECK(cuMemcpyHtoD(memory[1], second, sizeof second));
  void* arguments[] = {&memory[0], &memory[1], &memory[2]};
  CHECK(cuLaunchKernel(function, kCount / 128, 1, 1, 128, 1, 1, 0, NULL, arguments, NULL));
  CHECK(cuMemcpyDtoH(sum, memory[2], sizeof sum));
  for (int i = 0; i < kCount; ++i) {
    if (sum[i] != (float)(3 * i)) {
      printf("sum %d is %f\n", i, (double)sum[i]);
      return 1;
    }
  }
  printf("glibc %s: %d sums right\n", gnu_get_libc_version(), kCount);
  return 0;
}

static int start(int argc, char** argv) {
  (void)argc;
  (void)argv;
  return run();
}

/* What the compiler's own start-up files do, by the version of __libc_start_main that every glibc has. */
int old_start_main(int (*main)(int, char**), int argc, char** argv, void (*init)(void), void (*fini)(void), void (*rtld_fini)(void), void* stack);
__asm__(".symver old_start_main, __libc_start_main@GLIBC_2.2.5");

__attribute__((used)) static void begin(long* stack, void (*rtld_fini)(void)) {
  old_start_main(&start, (int)stack[0], (char**)(stack + 1), NULL, NULL, rtld_fini, stack);
}
__asm__(
    ".globl _start\n"
    "_start:\n"
    "  xorl %ebp, %ebp\n"
    "  movq %rsp, %rdi\n"
    "  movq %rdx, %rsi\n"
    "  andq $-16, %rsp\n"
    "  call begin\n"
    "  hlt\n");
