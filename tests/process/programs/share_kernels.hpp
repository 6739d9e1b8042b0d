// SPDX-License-Identifier: Apache-2.0
// The kernels of share_client.cpp, in which the multiprocessor notes itself.
#pragma once

namespace mpsshim::test {

// note: seen[%smid] counts the blocks. Each stays for a while, so that the grid spreads. busy: arithmetic that fills a multiprocessor.
inline constexpr char kShareKernels[] = R"(
.version 6.0
.target sm_50
.address_size 64
.visible .entry note(.param .u64 seen, .param .u32 rounds)
{
  .reg .u64 %rd<4>;
  .reg .u32 %r<6>;
  .reg .pred %p;
  ld.param.u64 %rd1, [seen];
  ld.param.u32 %r1, [rounds];
  mov.u32 %r2, %smid;
  mul.wide.u32 %rd2, %r2, 4;
  add.u64 %rd3, %rd1, %rd2;
  atom.global.add.u32 %r3, [%rd3], 1;
  mov.u32 %r4, 0;
LOOP:
  mad.lo.u32 %r3, %r3, 1664525, 1013904223;
  add.u32 %r4, %r4, 1;
  setp.lt.u32 %p, %r4, %r1;
  @%p bra LOOP;
  setp.ne.u32 %p, %r4, 0;
  @%p ret;
  st.global.u32 [%rd3], %r3;
  ret;
}
.visible .entry note_local(.param .u64 seen, .param .u32 rounds)
{
  .local .align 8 .b8 scratch[512];
  .reg .u64 %rd<6>;
  .reg .u32 %r<6>;
  ld.param.u64 %rd1, [seen];
  ld.param.u32 %r1, [rounds];
  mov.u32 %r2, %smid;
  and.b32 %r4, %r1, 127;
  mul.wide.u32 %rd2, %r4, 4;
  mov.u64 %rd3, scratch;
  add.u64 %rd3, %rd3, %rd2;
  st.local.u32 [%rd3], %r2;
  ld.local.u32 %r5, [%rd3];
  mul.wide.u32 %rd4, %r5, 4;
  add.u64 %rd5, %rd1, %rd4;
  atom.global.add.u32 %r3, [%rd5], 1;
  ret;
}
.visible .entry busy(.param .u64 out, .param .u32 rounds)
{
  .reg .u64 %rd<2>;
  .reg .u32 %r<4>;
  .reg .f32 %f<4>;
  .reg .pred %p;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [rounds];
  mov.u32 %r2, 0;
  mov.f32 %f1, 0f3F800001;
  mov.f32 %f2, 0f3F7FFFFE;
  mov.f32 %f3, 0f3F800000;
LOOP:
  fma.rn.f32 %f1, %f1, %f2, %f3;
  fma.rn.f32 %f2, %f2, %f1, %f3;
  fma.rn.f32 %f1, %f1, %f2, %f3;
  fma.rn.f32 %f2, %f2, %f1, %f3;
  add.u32 %r2, %r2, 1;
  setp.lt.u32 %p, %r2, %r1;
  @%p bra LOOP;
  setp.eq.f32 %p, %f1, 0f00000000;
  @!%p ret;
  st.global.f32 [%rd1], %f2;
  ret;
}
)";

}  // namespace mpsshim::test
