// SPDX-License-Identifier: Apache-2.0
// Single instructions at their edges, on both sets of handlers, with full and with partial warps.
#include <cmath>
#include <limits>

#include "tests/unit/ptx/test_device.hpp"

namespace mpsshim::ptx::test {
namespace {

std::uint32_t bits(float v) { return std::bit_cast<std::uint32_t>(v); }
std::uint64_t bits(double v) { return std::bit_cast<std::uint64_t>(v); }

struct Case {
  const char* body;  // Leaves its answer in %r10 or %rd10; inputs as immediates.
  std::uint64_t expected;
};

// Runs `body` on every lane, then only on odd ones, whose neighbours must stay untouched.
template <class T>
void check(const std::string& body, T expected, bool use_baseline) {
  const bool is_wide = sizeof(T) == 8;
  const std::string store = is_wide ? "st.global.u64 [%rd2], %rd10;" : "st.global.u32 [%rd1], %r10;";
  TestDevice device({.thread_count = 1, .use_baseline_isa = use_baseline});
  device.load(
      {kernel_text("and.b32 %r20, %r1, 1;\nld.param.u64 %rd20, [a];\ncvt.u32.u64 %r21, %rd20;\nor.b32 %r20, %r20, %r21;\nsetp.eq.u32 %p15, %r20, "
                   "0;\n@%p15 bra DONE;\n" +
                   body + "\n" + store + "\nDONE:\n")});
  for (const std::uint64_t all : {1, 0}) {
    Buffer<T> out(device.memory, 32, static_cast<T>(0x5a5a5a5a));
    device.launch("k", {1}, {32}, Parameters(out, all, 0ULL, 0ULL));
    for (std::size_t i = 0; i < 32; ++i) {
      INFO(body << (use_baseline ? " (baseline)" : "") << ", lane " << i);
      REQUIRE(out[i] == (all != 0 || i % 2 == 1 ? expected : static_cast<T>(0x5a5a5a5a)));
    }
  }
}
void check32(const std::string& body, std::uint32_t expected) {
  for (const bool baseline : {false, true}) check<std::uint32_t>(body, expected, baseline);
}
void check64(const std::string& body, std::uint64_t expected) {
  for (const bool baseline : {false, true}) check<std::uint64_t>(body, expected, baseline);
}

std::string hex(float v) {
  char text[16];
  std::snprintf(text, sizeof text, "0f%08X", bits(v));
  return text;
}
std::string hex(double v) {
  char text[24];
  std::snprintf(text, sizeof text, "0d%016llX", static_cast<unsigned long long>(bits(v)));
  return text;
}
void check_f32(const std::string& operation, std::initializer_list<float> inputs, float expected) {
  std::string body = operation + " %f10";
  for (const float v : inputs) body += ", " + hex(v);
  check32(body + ";\nmov.b32 %r10, %f10;", bits(expected));
}

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kTiny = std::ldexp(1.0F, -140);

}  // namespace

TEST_CASE("integer edges") {
  check32("mov.u32 %r5, 7; div.u32 %r10, %r5, 0;", 0xffffffff);
  check32("mov.u32 %r5, 7; rem.u32 %r10, %r5, 0;", 7);
  check32("mov.u32 %r5, 0x80000000; div.s32 %r10, %r5, -1;", 0x80000000);
  check32("mov.u32 %r5, 0x80000000; rem.s32 %r10, %r5, -1;", 0);
  check32("mov.u32 %r5, 0x80000000; abs.s32 %r10, %r5;", 0x80000000);
  check32("mov.u32 %r5, 0x7fffffff; add.sat.s32 %r10, %r5, 5;", 0x7fffffff);
  check32("mov.u32 %r5, 1; shl.b32 %r10, %r5, 32;", 0);
  check32("mov.u32 %r5, 0x80000000; shr.s32 %r10, %r5, 40;", 0xffffffff);
  check32("mov.u32 %r5, 0x80000000; shr.u32 %r10, %r5, 40;", 0);
  check32("mov.u32 %r5, 0xff00; bfe.u32 %r10, %r5, 8, 8;", 0xff);
  check32("mov.u32 %r5, 0xff00; bfe.s32 %r10, %r5, 8, 8;", 0xffffffff);
  check32("mov.u32 %r5, 0x12345678; bfe.u32 %r10, %r5, 28, 8;", 1);
  check32("mov.u32 %r5, 5; mov.u32 %r6, 0xffffffff; bfi.b32 %r10, %r5, %r6, 4, 8;", 0xfffff05f);
  check32("mov.u32 %r5, 0; bfind.u32 %r10, %r5;", 0xffffffff);
  check32("mov.u32 %r5, 0xfffffff0; bfind.s32 %r10, %r5;", 3);
  check32("mov.u32 %r5, 0x00010000; bfind.shiftamt.u32 %r10, %r5;", 15);
  check32("mov.u32 %r5, 0xb2; fns.b32 %r10, %r5, 2, 2;", 5);
  check32("mov.u32 %r5, 0xb2; fns.b32 %r10, %r5, 3, -1;", 1);
  check32("mov.u32 %r5, 0xb2; fns.b32 %r10, %r5, 7, 2;", 0xffffffff);
  check32("bmsk.clamp.b32 %r10, 4, 40;", 0xfffffff0);
  check32("mov.u32 %r5, 0xF0F0F0F0; lop3.b32 %r10, %r5, 0xCCCCCCCC, 0xAAAAAAAA, 0xE8;", 0xE8E8E8E8);
  check32("mov.u32 %r5, 0x33221100; prmt.b32 %r10, %r5, 0x77665544, 0x7250;", 0x77225500);
  check32("mov.u32 %r5, 0x80; prmt.b32 %r10, %r5, 0, 0x8888;", 0xffffffff);
  check32("mov.u32 %r5, 0x80000001; shf.l.wrap.b32 %r10, %r5, 3, 33;", 7);
  check32("mov.u32 %r5, 0x80000001; shf.l.clamp.b32 %r10, %r5, 3, 33;", 0x80000001);
  check64("mov.u64 %rd5, 0xffffffffffffffff; mul.hi.u64 %rd10, %rd5, %rd5;", 0xfffffffffffffffe);
  check64("mov.u32 %r5, -2; mad.wide.s32 %rd10, %r5, 3, 10;", 4);
  check64("mov.u64 %rd5, -3; shr.s64 %rd10, %rd5, 1;", static_cast<std::uint64_t>(-2));
  check32("mov.u64 %rd5, 0x00f0000000000000; clz.b64 %r10, %rd5;", 8);
  check32("mov.b32 %r5, 0xfffe0003; mov.b32 {%rs1, %rs2}, %r5; add.s16 %rs3, %rs1, %rs2; cvt.s32.s16 %r10, %rs3;", 1);
  check64("mov.b64 %rd10, {%r5, 7}; mov.b64 {%r6, %r7}, %rd10; mov.b64 %rd10, {%r7, %r7};", 0x0000000700000007);
}

TEST_CASE("carry chains") {
  check64("mov.u32 %r5, 0xffffffff; add.cc.u32 %r6, %r5, 1; addc.u32 %r7, 0, 0; mov.b64 %rd10, {%r6, %r7};", 0x100000000);
  check64("mov.u32 %r5, 0; sub.cc.u32 %r6, %r5, 1; subc.u32 %r7, 5, 0; mov.b64 %rd10, {%r6, %r7};", 0x4ffffffff);
  check64("mov.u32 %r5, 0xffffffff; mad.lo.cc.u32 %r6, %r5, %r5, 0xffffffff; madc.hi.u32 %r7, %r5, %r5, 0; mov.b64 %rd10, {%r6, %r7};",
          0xffffffffULL * 0xffffffffULL + 0xffffffffULL);
}

TEST_CASE("directed rounding, flushing, saturation") {
  const float third = 1.0F / 3;
  check_f32("add.rz.f32", {1.0F, std::ldexp(1.0F, -30)}, 1.0F);
  check_f32("add.rp.f32", {1.0F, std::ldexp(1.0F, -30)}, std::nextafter(1.0F, 2.0F));
  check_f32("add.rm.f32", {1.0F, -std::ldexp(1.0F, -30)}, std::nextafter(1.0F, 0.0F));
  check_f32("div.rp.f32", {1.0F, 3.0F}, third);
  check_f32("div.rz.f32", {1.0F, 3.0F}, std::nextafter(third, 0.0F));
  check_f32("fma.rm.f32", {third, 3.0F, -1.0F}, std::fma(third, 3.0F, -1.0F));
  check_f32("fma.rz.f32", {1.0F, 1.0F, std::ldexp(-1.0F, -30)}, std::nextafter(1.0F, 0.0F));
  check_f32("mul.ftz.f32", {kTiny, 1.0F}, 0.0F);
  check_f32("mul.f32", {kTiny, 1.0F}, kTiny);
  check_f32("add.ftz.f32", {-kTiny, -kTiny}, -0.0F);
  check_f32("add.sat.f32", {3.0F, 4.0F}, 1.0F);
  check_f32("add.sat.f32", {std::nanf(""), 4.0F}, 0.0F);
  check_f32("fma.rn.f32", {1.0F + std::ldexp(1.0F, -12), 1.0F + std::ldexp(1.0F, -12), -1.0F},
            std::fma(1.0F + std::ldexp(1.0F, -12), 1.0F + std::ldexp(1.0F, -12), -1.0F));
  check_f32("sqrt.rn.f32", {2.0F}, std::sqrt(2.0F));
}

TEST_CASE("products and sums are not fused unless PTX says so") {
  const float x = 1.0F + std::ldexp(1.0F, -12);
  volatile float product = x * x;
  check32("mul.rn.f32 %f1, " + hex(x) + ", " + hex(x) + "; add.rn.f32 %f2, %f1, " + hex(-1.0F) + "; mov.b32 %r10, %f2;", bits(product - 1.0F));
}

TEST_CASE("minimum, maximum and comparisons with NaN and signed zeros") {
  check_f32("min.f32", {std::nanf(""), 2.0F}, 2.0F);
  check_f32("max.f32", {2.0F, std::nanf("")}, 2.0F);
  check32("min.NaN.f32 %f1, 0f7FC00000, 0f40000000; mov.b32 %r10, %f1;", 0x7fffffff);
  check_f32("min.f32", {0.0F, -0.0F}, -0.0F);
  check_f32("max.f32", {-0.0F, 0.0F}, 0.0F);
  const char* const kNan = "mov.f32 %f1, 0f7FC00000; setp.";
  const auto compare = [&](const char* op, std::uint32_t expected) {
    check32(std::string(kNan) + op + ".f32 %p1, %f1, 0f3F800000; selp.u32 %r10, 1, 0, %p1;", expected);
  };
  compare("eq", 0);
  compare("ne", 0);
  compare("lt", 0);
  compare("ge", 0);
  compare("equ", 1);
  compare("neu", 1);
  compare("ltu", 1);
  compare("geu", 1);
  compare("num", 0);
  compare("nan", 1);
  check32("setp.lt.and.s32 %p1|%p2, -1, 1, !%p3; selp.u32 %r5, 2, 0, %p1; selp.u32 %r6, 1, 0, %p2; or.b32 %r10, %r5, %r6;", 2);
  check32("testp.subnormal.f32 %p1, 0f00000001; selp.u32 %r10, 1, 0, %p1;", 1);
  check32("set.gt.u32.f32 %r10, 0f40000000, 0f3F800000;", 0xffffffff);
}

TEST_CASE("conversions clamp, round and extend") {
  check32("mov.f32 %f1, " + hex(3e9F) + "; cvt.rzi.s32.f32 %r10, %f1;", 0x7fffffff);
  check32("mov.f32 %f1, " + hex(-3e9F) + "; cvt.rzi.s32.f32 %r10, %f1;", 0x80000000);
  check32("mov.f32 %f1, " + hex(-1.5F) + "; cvt.rzi.u32.f32 %r10, %f1;", 0);
  check32("mov.f32 %f1, 0f7FC00000; cvt.rzi.s32.f32 %r10, %f1;", 0);
  check64("mov.f32 %f1, 0f7FC00000; cvt.rzi.s64.f32 %rd10, %f1;", 0x8000000000000000);
  check64("mov.f32 %f1, " + hex(kInf) + "; cvt.rzi.u64.f32 %rd10, %f1;", 0xffffffffffffffff);
  check32("mov.f32 %f1, " + hex(2.5F) + "; cvt.rni.s32.f32 %r10, %f1;", 2);
  check32("mov.f32 %f1, " + hex(-2.5F) + "; cvt.rmi.s32.f32 %r10, %f1;", static_cast<std::uint32_t>(-3));
  check32("mov.u64 %rd5, 0x8000008000000001; cvt.rn.f32.u64 %f1, %rd5; mov.b32 %r10, %f1;", bits(static_cast<float>(0x8000008000000001ULL)));
  check32("mov.u32 %r5, 0x1000001; cvt.rz.f32.u32 %f1, %r5; mov.b32 %r10, %f1;", bits(16777216.0F));
  check32("mov.u32 %r5, 300; cvt.sat.u8.u32 %r10, %r5;", 255);
  check32("mov.u32 %r5, -300; cvt.sat.s8.s32 %r10, %r5;", static_cast<std::uint32_t>(-128));
  check64("mov.u64 %rd5, 0x7fffffff80000001; cvt.s64.s32 %rd10, %rd5;", 0xffffffff80000001);
  check32("mov.u32 %r5, 0x1ff; cvt.s32.s8 %r10, %r5;", 0xffffffff);
  check32("mov.f64 %fd1, " + hex(1.0 + std::ldexp(1.0, -24)) + "; cvt.rp.f32.f64 %f1, %fd1; mov.b32 %r10, %f1;", bits(std::nextafter(1.0F, 2.0F)));
  check64("mov.f64 %fd1, " + hex(-0.5) + "; cvt.rpi.f64.f64 %fd2, %fd1; mov.b64 %rd10, %fd2;", bits(-0.0));
}

TEST_CASE("half precision") {
  const auto to_half = [](float v, std::uint32_t expected) { check32("cvt.rn.f16.f32 %rs1, " + hex(v) + "; cvt.u32.u16 %r10, %rs1;", expected); };
  to_half(1.0F, 0x3c00);
  to_half(65504.0F, 0x7bff);
  to_half(65519.9F, 0x7bff);
  to_half(65520.0F, 0x7c00);
  to_half(-kInf, 0xfc00);
  to_half(std::ldexp(1.0F, -24), 1);
  to_half(std::ldexp(1.0F, -25), 0);
  to_half(std::ldexp(1.5F, -25), 1);
  to_half(1.0F + std::ldexp(1.0F, -11), 0x3c00);
  to_half(1.0F + std::ldexp(3.0F, -11), 0x3c02);
  check32("mov.b16 %rs1, 0x0001; cvt.f32.f16 %f1, %rs1; mov.b32 %r10, %f1;", bits(std::ldexp(1.0F, -24)));
  check32("mov.b16 %rs1, 0xfc00; cvt.f32.f16 %f1, %rs1; mov.b32 %r10, %f1;", bits(-kInf));
  check32("mov.b32 %r5, 0x40003c00; mov.b32 %r6, 0x3c003c00; add.f16x2 %r10, %r5, %r6;", 0x42004000);
  check32("mov.b16 %rs1, 0x3c01; mov.b16 %rs2, 0x3c01; mov.b16 %rs3, 0xbc02; fma.rn.f16 %rs4, %rs1, %rs2, %rs3; cvt.u32.u16 %r10, %rs4;", 0x0010);
  check32("cvt.rn.bf16.f32 %rs1, " + hex(1.00390625F) + "; cvt.u32.u16 %r10, %rs1;", 0x3f80);
  check32("cvt.rn.f16x2.f32 %r10, " + hex(2.0F) + ", " + hex(1.0F) + ";", 0x40003c00);
}

}  // namespace mpsshim::ptx::test
