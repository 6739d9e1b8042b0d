// SPDX-License-Identifier: Apache-2.0
// Kernels with one atomic operation each, in every form that has an opcode of its own. Those whose names begin with "system_" exclude the host's.
#define ATOMICS(NAME, SCOPE)                                                                                                                   \
  __global__ void NAME##_returns(unsigned* p, unsigned n) {                                                                                    \
    asm volatile("atom.global.relaxed." SCOPE ".add.u32 %0, [%1], %2;" : "=r"(n) : "l"(p), "r"(n) : "memory");                                 \
    p[1] = n;                                                                                                                                  \
  }                                                                                                                                            \
  __global__ void NAME##_reduces(unsigned* p, unsigned n) { asm volatile("red.relaxed." SCOPE ".global.add.u32 [%0], %1;" ::"l"(p), "r"(n)); } \
  __global__ void NAME##_swaps(unsigned* p, unsigned n) {                                                                                      \
    asm volatile("atom.global.acq_rel." SCOPE ".cas.b32 %0, [%1], %2, 7;" : "=r"(n) : "l"(p), "r"(n) : "memory");                              \
    p[1] = n;                                                                                                                                  \
  }                                                                                                                                            \
  __global__ void NAME##_returns_generic(unsigned* p, unsigned n) {                                                                            \
    asm volatile("atom.acquire." SCOPE ".max.u32 %0, [%1], %2;" : "=r"(n) : "l"(p), "r"(n) : "memory");                                        \
    p[1] = n;                                                                                                                                  \
  }                                                                                                                                            \
  __global__ void NAME##_reduces_generic(unsigned* p, unsigned n) { asm volatile("red.release." SCOPE ".or.b32 [%0], %1;" ::"l"(p), "r"(n)); } \
  __global__ void NAME##_swaps_generic(unsigned* p, unsigned n) {                                                                              \
    asm volatile("atom.relaxed." SCOPE ".cas.b32 %0, [%1], %2, 7;" : "=r"(n) : "l"(p), "r"(n) : "memory");                                     \
    p[1] = n;                                                                                                                                  \
  }                                                                                                                                            \
  __global__ void NAME##_returns_float(float* p, float x) {                                                                                    \
    asm volatile("atom.global.relaxed." SCOPE ".add.f32 %0, [%1], %2;" : "=f"(x) : "l"(p), "f"(x) : "memory");                                 \
    p[1] = x;                                                                                                                                  \
  }                                                                                                                                            \
  __global__ void NAME##_returns_float_generic(float* p, float x) {                                                                            \
    asm volatile("atom.relaxed." SCOPE ".add.f32 %0, [%1], %2;" : "=f"(x) : "l"(p), "f"(x) : "memory");                                        \
    p[1] = x;                                                                                                                                  \
  }                                                                                                                                            \
  __global__ void NAME##_reduces_float(float* p, float x) { asm volatile("red.relaxed." SCOPE ".global.add.f32 [%0], %1;" ::"l"(p), "f"(x)); }

extern "C" {
ATOMICS(system, "sys")
ATOMICS(device, "gpu")
ATOMICS(block, "cta")

#if __CUDA_ARCH__ >= 1000
__global__ void system_reduces_later(unsigned* p, unsigned n) { asm volatile("red.async.release.sys.global.add.u32 [%0], %1;" ::"l"(p), "r"(n)); }
__global__ void system_reduces_as_io(unsigned* p, unsigned n) {
  asm volatile("red.async.mmio.release.sys.global.add.u32 [%0], %1;" ::"l"(p), "r"(n));
}
__global__ void device_reduces_later(unsigned* p, unsigned n) { asm volatile("red.async.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(n)); }
#endif

// What is of the system's scope and changes nothing in one step.
__global__ void plain_orders(unsigned* p) {
  volatile unsigned* flag = p;
  unsigned n;
  flag[0] = flag[1] + 1;
  __threadfence_system();
  asm volatile("fence.acq_rel.sys; ld.acquire.sys.u32 %0, [%1];" : "=r"(n) : "l"(p + 2) : "memory");
  asm volatile("st.release.sys.u32 [%0], %1; st.relaxed.sys.global.u32 [%0+4], %1;" ::"l"(p + 3), "r"(n) : "memory");
}
__global__ void plain_in_shared(unsigned* p) {
  __shared__ unsigned shared;
  shared = threadIdx.x;
  __syncthreads();
  asm volatile("red.shared.relaxed.sys.add.u32 [%0], 1;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(&shared))) : "memory");
  __syncthreads();
  *p = shared;
}

#ifndef __CUDACC_DEBUG__  // there these are functions outside the kernels
__global__ void system_by_call(int* p) { atomicAdd_system(p, 1); }
__global__ void system_by_call_returns(int* p) { p[1] = atomicExch_system(p, 1); }
__global__ void system_by_call_swaps(int* p) { p[1] = atomicCAS_system(p, 1, 2); }
__global__ void system_by_call_in_loop(int** p, int n) {
  while (n-- > 0) atomicMax_system(p[n], n);
}
__global__ void device_by_call(int* p) { p[1] = atomicAdd(p, 1); }
__global__ void block_by_call(int* p) { atomicAdd_block(p, 1); }
#endif
}
