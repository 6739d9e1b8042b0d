// SPDX-License-Identifier: Apache-2.0
//
// What a grid's barrier is to images that link it from the device runtime (CUDA's cooperative groups until CUDA 10, and compilers that still do so):
// functions in PTX. The grid's memory is where those of today have it (%envreg1 and 2), their barrier elsewhere in it.
#pragma once

#include <string_view>

namespace mpsshim::ptx {

inline constexpr std::string_view kGridHandleFunction = "cudaCGGetIntrinsicHandle";
inline constexpr std::string_view kGridBarrierFunction = "cudaCGSynchronize";

// The first is 0 where the launch is not cooperative, or another scope than the grid's (1) is asked for; the second gives cudaErrorInvalidValue then.
// Each block's first thread adds 1, that of the first block what is missing to 2^31: so the highest bit changes when all have come.
inline constexpr std::string_view kCooperativeGroupsText = R"(.version 6.4
.target sm_70
.address_size 64
.visible .func (.param .b64 result) cudaCGGetIntrinsicHandle(.param .b32 scope)
{
  .reg .b32 %r<4>;
  .reg .b64 %d<3>;
  .reg .pred %p<2>;
  ld.param.u32 %r1, [scope];
  mov.u32 %r2, %envreg1;
  mov.u32 %r3, %envreg2;
  mov.b64 %d1, {%r3, %r2};
  setp.eq.u32 %p1, %r1, 1;
  selp.b64 %d2, %d1, 0, %p1;
  st.param.b64 [result], %d2;
  ret;
}
.visible .func (.param .b32 result) cudaCGSynchronize(.param .b64 handle, .param .b32 flags)
{
  .reg .b32 %r<20>;
  .reg .b64 %d<2>;
  .reg .pred %p<5>;
  ld.param.u64 %d1, [handle];
  mov.u32 %r1, 1;
  setp.eq.u64 %p1, %d1, 0;
  @%p1 bra out;
  mov.u32 %r1, 0;
  bar.sync 0;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %tid.y;
  mov.u32 %r4, %tid.z;
  or.b32 %r5, %r2, %r3;
  or.b32 %r5, %r5, %r4;
  setp.ne.u32 %p2, %r5, 0;
  @%p2 bra all;
  mov.u32 %r6, %nctaid.x;
  mov.u32 %r7, %nctaid.y;
  mov.u32 %r8, %nctaid.z;
  mul.lo.u32 %r9, %r6, %r7;
  mul.lo.u32 %r9, %r9, %r8;
  sub.u32 %r10, 0x80000001, %r9;
  mov.u32 %r11, %ctaid.x;
  mov.u32 %r12, %ctaid.y;
  mov.u32 %r13, %ctaid.z;
  or.b32 %r14, %r11, %r12;
  or.b32 %r14, %r14, %r13;
  setp.eq.u32 %p3, %r14, 0;
  selp.b32 %r15, %r10, 1, %p3;
  membar.gl;
  atom.add.u32 %r16, [%d1+128], %r15;
again:
  ld.volatile.u32 %r17, [%d1+128];
  xor.b32 %r18, %r17, %r16;
  setp.ge.s32 %p4, %r18, 0;
  @%p4 bra again;
  membar.gl;
all:
  bar.sync 0;
out:
  st.param.b32 [result], %r1;
  ret;
}
)";

}  // namespace mpsshim::ptx
