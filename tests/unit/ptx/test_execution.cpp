// SPDX-License-Identifier: Apache-2.0
// How warps and blocks run: faults, collectives in parts, barriers of blocks and grids, strong accesses, cancellation.
#include <chrono>
#include <thread>

#include "tests/unit/ptx/test_device.hpp"

namespace mpsshim::ptx::test {

TEST_CASE("a wild address ends the launch and names itself") {
  TestDevice device;
  device.load({
      kernel_text("ld.param.u64 %rd10, [a];\nld.global.u32 %r5, [%rd10+4];\nst.global.u32 [%rd1], %r5;"),
  });
  Buffer<std::uint32_t> out(device.memory, 64);
  for (const std::uint64_t address : {std::uint64_t{0}, std::uint64_t{0x10000}, ~std::uint64_t{0}, ~std::uint64_t{0} - 4,
                                      std::uint64_t{0x8000000000000000}, std::uint64_t{0x00f0000000000000}}) {
    const LaunchOutcome outcome = device.try_launch("k", {2}, {32}, Parameters(out, address, 0ULL, 0ULL));
    REQUIRE(outcome.fault == Fault::illegal_address);
    CHECK(outcome.address == address + 4);
    CHECK_FALSE(outcome.is_write);
    CHECK(outcome.line == 23);
    CHECK(outcome.kernel == "k");
    CHECK(outcome.text.find("line 23") != std::string::npos);
  }
}

TEST_CASE("the bounds of a buffer, at the limit and one past it") {
  TestDevice device;
  device.load({kernel_text("ld.param.u64 %rd10, [a];\nadd.u64 %rd2, %rd2, %rd10;\nst.global.u32 [%rd2], %r1;")});
  Buffer<std::uint32_t> out(device.memory, 64, 7);  // Lane 31 writes at 8 * 31 + a, 4 bytes.
  CHECK(device.try_launch("k", {1}, {32}, Parameters(out, 4ULL, 0ULL, 0ULL)).fault == Fault::none);
  CHECK(out[63] == 31);
  const LaunchOutcome outcome = device.try_launch("k", {1}, {32}, Parameters(out, 8ULL, 0ULL, 0ULL));
  CHECK(outcome.fault == Fault::illegal_address);
  CHECK(outcome.address == static_cast<std::uint64_t>(out) + 256);
  CHECK(outcome.is_write);
  CHECK(device.try_launch("k", {1}, {31}, Parameters(out, 8ULL, 0ULL, 0ULL)).fault == Fault::none);
  const LaunchOutcome misaligned = device.try_launch("k", {1}, {1}, Parameters(out, 2ULL, 0ULL, 0ULL));
  CHECK(misaligned.fault == Fault::misaligned_address);
  CHECK(misaligned.address == static_cast<std::uint64_t>(out) + 2);
}

TEST_CASE("read-only memory is not written, shared and local memory have bounds") {
  TestDevice device;
  const std::vector<std::uint32_t> fixed(64, 3);
  device.memory.add(fixed.data(), 256, false);
  const auto address = reinterpret_cast<std::uint64_t>(fixed.data());
  device.load({kernel_text(
      "ld.global.u32 %r5, [%rd1];\nld.param.u64 %rd10, [a];\nsetp.eq.u64 %p1, %rd10, 0;\n@%p1 bra DONE;\nst.global.u32 [%rd1], %r5;\nDONE:\n")});
  CHECK(device.try_launch("k", {1}, {32}, Parameters(address, 0ULL, 0ULL, 0ULL)).fault == Fault::none);
  const LaunchOutcome outcome = device.try_launch("k", {1}, {32}, Parameters(address, 1ULL, 0ULL, 0ULL));
  CHECK(outcome.fault == Fault::illegal_address);
  CHECK(outcome.is_write);
  for (const char* space : {"shared", "local"}) {
    TestDevice other;
    other.load({kernel_text(std::string(".") + space +
                            " .align 4 .b8 v[64];\nld.param.u64 %rd10, [a];\nmov.u64 %rd11, v;\nadd.u64 %rd12, %rd11, %rd10;\nst." + space +
                            ".u32 [%rd12], %r1;\n")});
    CHECK(other.try_launch("k", {1}, {32}, Parameters(0ULL, 60ULL, 0ULL, 0ULL)).fault == Fault::none);
    CHECK(other.try_launch("k", {1}, {32}, Parameters(0ULL, 64ULL, 0ULL, 0ULL)).fault == Fault::illegal_address);
    CHECK(other.try_launch("k", {1}, {32}, Parameters(0ULL, ~3ULL, 0ULL, 0ULL)).fault == Fault::illegal_address);
  }
}

TEST_CASE("trap and unknown barriers") {
  TestDevice device;
  device.load({kernel_text("trap;")});
  CHECK(device.try_launch("k", {100}, {64}, Parameters(0ULL, 0ULL, 0ULL, 0ULL)).fault == Fault::launch_failed);
  TestDevice other;
  other.load({kernel_text("mov.u32 %r5, 16;\nbar.sync %r5;")});
  CHECK(other.try_launch("k", {1}, {64}, Parameters(0ULL, 0ULL, 0ULL, 0ULL)).fault == Fault::illegal_instruction);
}

TEST_CASE("redux and vote with member masks that differ from lane to lane") {
  TestDevice device;
  device.load(
      {kernel_text("mov.u32 %r5, %laneid;\nsetp.lt.u32 %p1, %r5, 16;\nselp.b32 %r6, 0xffff, 0xffff0000, %p1;\nredux.sync.add.s32 %r7, %r5, %r6;\n"
                   "setp.eq.u32 %p2, %r5, 20;\nvote.sync.any.pred %p3, %p2, %r6;\nselp.u32 %r8, 1000, 0, %p3;\nadd.u32 %r9, %r7, %r8;\n"
                   "and.b32 %r10, %r5, 3;\nmatch.any.sync.b32 %r11, %r10, %r6;\npopc.b32 %r12, %r11;\nmad.lo.u32 %r9, %r12, 10000, "
                   "%r9;\nst.global.u32 [%rd1], %r9;")});
  Buffer<std::uint32_t> out(device.memory, 32);
  device.launch("k", {1}, {32}, Parameters(out, 0ULL, 0ULL, 0ULL));
  for (std::size_t i = 0; i < 32; ++i) CHECK(out[i] == (i < 16 ? 120U : 376U + 1000U) + 40000U);
}

TEST_CASE("a shuffle waits for lanes that come late, and not for those that have left") {
  TestDevice device;
  device.load(
      {kernel_text("mov.u32 %r5, %laneid;\nsetp.ge.u32 %p1, %r5, 24;\n@%p1 exit;\nmov.u32 %r6, %r5;\nsetp.lt.u32 %p2, %r5, 8;\n@%p2 bra MEET;\n"
                   "mov.u32 %r7, 0;\nLOOP:\nadd.u32 %r7, %r7, 1;\nadd.u32 %r6, %r6, 10;\nsetp.lt.u32 %p3, %r7, %r5;\n@%p3 bra LOOP;\n"
                   "MEET:\nshfl.sync.idx.b32 %r8|%p4, %r6, 9, 31, 0xffffffff;\nst.global.u32 [%rd1], %r8;")});
  Buffer<std::uint32_t> out(device.memory, 32);
  device.launch("k", {1}, {32}, Parameters(out, 0ULL, 0ULL, 0ULL));
  for (std::size_t i = 0; i < 32; ++i) CHECK(out[i] == (i < 24 ? 99U : 0U));
}

TEST_CASE("a shuffle gives 0 from a lane that takes no part, and the own value beyond the segment") {
  struct Mode {
    const char* name;
    const char* operands;
    std::int32_t (*source)(std::int32_t lane);
  };
  const Mode modes[] = {{"idx", "20, 31", [](std::int32_t) { return 20; }},
                        {"up", "4, 0", [](std::int32_t lane) { return lane - 4; }},
                        {"down", "4, 31", [](std::int32_t lane) { return lane + 4; }},
                        {"bfly", "8, 31", [](std::int32_t lane) { return lane ^ 8; }}};
  struct Absence {
    const char* how;
    const char* text;
    std::int32_t first;  // present lanes: [first, end)
    std::int32_t end;
    std::uint32_t threads;
  };
  const Absence absences[] = {{"has left", "setp.ge.u32 %p1, %r5, 12;\n@%p1 exit;\n", 0, 12, 32},
                              {"is elsewhere", "setp.lt.u32 %p1, %r5, 6;\n@%p1 bra END;\n", 6, 32, 32},
                              {"was never there", "", 0, 18, 18}};
  for (const Mode& mode : modes) {
    for (const Absence& absence : absences) {
      INFO(mode.name << ": " << absence.how);
      TestDevice device;
      const std::uint32_t members = static_cast<std::uint32_t>(((1ULL << absence.end) - 1) & ~((1ULL << absence.first) - 1));
      device.load({kernel_text("mov.u32 %r5, %laneid;\nadd.u32 %r6, %r5, 100;\n" + std::string(absence.text) + "shfl.sync." + mode.name +
                               ".b32 %r7, %r6, " + mode.operands + ", " + std::to_string(members) + ";\nst.global.u32 [%rd1], %r7;\nEND:")});
      Buffer<std::uint32_t> out(device.memory, 32, 7777);
      device.launch("k", {1}, {absence.threads}, Parameters(out, 0ULL, 0ULL, 0ULL));
      for (std::int32_t i = absence.first; i < absence.end; ++i) {
        const std::int32_t source = mode.source(i);
        const bool is_there = source >= absence.first && source < absence.end;
        const std::int32_t want = source < 0 || source > 31 ? i + 100 : is_there ? source + 100 : 0;
        CHECK(out[static_cast<std::size_t>(i)] == static_cast<std::uint32_t>(want));
      }
    }
  }
}

TEST_CASE("shuffle segments and predicates") {
  TestDevice device;
  device.load(
      {kernel_text("mov.u32 %r5, %laneid;\nshfl.sync.up.b32 %r6|%p1, %r5, 3, 0x1800, -1;\nselp.u32 %r7, 100, 0, %p1;\nadd.u32 %r8, %r6, "
                   "%r7;\nst.global.u32 [%rd1], %r8;")});
  Buffer<std::uint32_t> out(device.memory, 32);
  device.launch("k", {1}, {32}, Parameters(out, 0ULL, 0ULL, 0ULL));
  for (std::size_t i = 0; i < 32; ++i) CHECK(out[i] == (i % 8 >= 3 ? i - 3 + 100 : i));
}

TEST_CASE("named barriers with counts: producers arrive, consumers wait") {
  TestDevice device;
  device.load({kernel_text(
      ".shared .align 4 .b8 s[128];\nmov.u32 %r5, s;\nsetp.ge.u32 %p1, %r4, 32;\n@%p1 bra CONSUME;\n"
      "shl.b32 %r6, %r4, 2;\nadd.u32 %r7, %r5, %r6;\nmov.u32 %r8, 0;\nWAIT: add.u32 %r8, %r8, 1;\nsetp.lt.u32 %p2, %r8, 5000;\n@%p2 bra WAIT;\n"
      "st.shared.u32 [%r7], %r4;\nbar.arrive 3, 64;\nret;\n"
      "CONSUME:\nbar.sync 3, 64;\nsub.u32 %r6, 63, %r4;\nshl.b32 %r6, %r6, 2;\nadd.u32 %r7, %r5, %r6;\nld.shared.u32 %r9, [%r7];\nst.global.u32 "
      "[%rd1], %r9;")});
  Buffer<std::uint32_t> out(device.memory, 64);
  device.launch("k", {1}, {64}, Parameters(out, 0ULL, 0ULL, 0ULL));
  for (std::size_t i = 32; i < 64; ++i) CHECK(out[i] == 63 - i);
}

TEST_CASE("a block is a cluster of its own: its numbers, and its barrier in two parts") {
  TestDevice device;
  // The first warp arrives, then waits for a word that the second stores behind its own wait; threads from 80 on have left before.
  device.load({kernel_text(
      ".shared .align 4 .b8 s[512];\nsetp.ge.u32 %p1, %r4, 80;\n@%p1 exit;\nmov.u32 %r5, s;\nshl.b32 %r6, %r4, 2;\nadd.u32 %r7, %r5, %r6;\n"
      "st.shared.u32 [%r7], %r4;\nbarrier.cluster.arrive.release.aligned;\n"
      "setp.ge.u32 %p2, %r4, 32;\n@%p2 bra WAIT;\nAGAIN:\nld.volatile.shared.u32 %r8, [%r5+400];\nsetp.eq.u32 %p3, %r8, 0;\n@%p3 bra AGAIN;\n"
      "WAIT:\nbarrier.cluster.wait.acquire;\nmov.u32 %r9, 1;\nsetp.lt.u32 %p4, %r4, 32;\n@%p4 bra READ;\nst.volatile.shared.u32 [%r5+400], %r9;\n"
      "READ:\nsub.u32 %r10, 79, %r4;\nshl.b32 %r10, %r10, 2;\nadd.u32 %r10, %r5, %r10;\nld.shared.u32 %r11, [%r10];\n"
      "mov.u32 %r12, %cluster_nctarank;\nmov.u32 %r13, %cluster_ctarank;\nmov.u32 %r14, %clusterid.x;\nmov.u32 %r15, %nclusterid.x;\n"
      "mov.u32 %r16, %cluster_nctaid.y;\nmad.lo.u32 %r12, %r12, 100, %r13;\nmad.lo.u32 %r12, %r14, 1000, %r12;\nmad.lo.u32 %r12, %r15, 10000, %r12;\n"
      "mad.lo.u32 %r12, %r16, 100000, %r12;\nmad.lo.u32 %r11, %r12, 1000, %r11;\n"
      "barrier.cluster.arrive;\nbarrier.cluster.wait;\nst.global.u32 [%rd1], %r11;")});
  Buffer<std::uint32_t> out(device.memory, 192, 1);
  device.launch("k", {2}, {96}, Parameters(out, 0ULL, 0ULL, 0ULL));
  for (std::uint32_t block = 0; block < 2; ++block) {
    for (std::uint32_t i = 0; i < 96; ++i) {
      CHECK(out[block * 96 + i] == (i < 80 ? (100000 + 20000 + block * 1000 + 100) * 1000 + 79 - i : 1));
    }
  }
}

// As linked with the device runtime of CUDA 10, and by compilers of today that have it so.
TEST_CASE("a grid's barrier by the device runtime's functions") {
  const std::string text = kHead + R"(
.extern .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope);
.extern .func (.param .b32 status) cudaCGSynchronize(.param .b64 handle, .param .b32 flags);
.visible .entry turns(.param .u64 words, .param .u64 statuses)
{
  .reg .b32 %r<20>;
  .reg .b64 %d<10>;
  .reg .pred %p<3>;
  ld.param.u64 %d1, [words];
  ld.param.u64 %d2, [statuses];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %nctaid.x;
  { .param .b32 a; .param .b64 b; st.param.b32 [a], 1; call (b), cudaCGGetIntrinsicHandle, (a); ld.param.b64 %d3, [b]; }
  mov.u32 %r3, 0;
next:
  // Each block adds its neighbour's number to its own, in turns that the barrier keeps apart.
  add.u32 %r4, %r1, 1;
  rem.u32 %r4, %r4, %r2;
  mad.wide.u32 %d4, %r4, 4, %d1;
  ld.volatile.global.u32 %r5, [%d4];
  { .param .b64 a; .param .b32 f; .param .b32 b; st.param.b64 [a], %d3; st.param.b32 [f], 0; call (b), cudaCGSynchronize, (a, f); ld.param.b32 %r6, [b]; }
  mad.wide.u32 %d5, %r1, 4, %d1;
  mov.u32 %r7, %tid.x;
  setp.ne.u32 %p1, %r7, 0;
  @%p1 bra wait;
  ld.volatile.global.u32 %r8, [%d5];
  add.u32 %r8, %r8, %r5;
  st.volatile.global.u32 [%d5], %r8;
  mad.wide.u32 %d6, %r1, 4, %d2;
  st.global.u32 [%d6], %r6;
wait:
  { .param .b64 a; .param .b32 f; .param .b32 b; st.param.b64 [a], %d3; st.param.b32 [f], 0; call (b), cudaCGSynchronize, (a, f); ld.param.b32 %r6, [b]; }
  add.u32 %r3, %r3, 1;
  setp.lt.u32 %p2, %r3, 12;
  @%p2 bra next;
  ret;
}
)";
  TestDevice device;
  device.load({text});
  constexpr unsigned kBlocks = 9;
  Buffer<std::uint32_t> words(device.memory, kBlocks), statuses(device.memory, kBlocks);
  std::vector<std::uint32_t> expected(kBlocks);
  for (unsigned i = 0; i < kBlocks; ++i) words[i] = expected[i] = i + 1;
  for (unsigned turn = 0; turn < 12; ++turn) {
    const std::vector<std::uint32_t> before = expected;
    for (unsigned i = 0; i < kBlocks; ++i) expected[i] += before[(i + 1) % kBlocks];
  }
  CHECK(device.try_launch("turns", {kBlocks}, {96}, Parameters(words, statuses), 0, true).fault == Fault::none);
  for (unsigned i = 0; i < kBlocks; ++i) {
    CHECK(words[i] == expected[i]);
    CHECK(statuses[i] == 0);
  }
  CHECK(device.try_launch("turns", {1}, {32}, Parameters(words, statuses)).fault == Fault::none);
  CHECK(statuses[0] == 1);  // not cooperative: cudaErrorInvalidValue
}

TEST_CASE("reserved shared memory is zero for every block, and lies behind the kernel's own") {
  TestDevice device({.thread_count = 0});
  device.load(
      {kernel_text(".shared .align 4 .b8 s[64];\n.extern .shared .align 4 .b8 d[];\nmov.u32 %r5, s;\nmov.u32 %r5, d;\nmov.u32 %r5, "
                   "%reserved_smem_offset_1;\ngriddepcontrol.wait;\n"
                   "atom.shared.add.u32 %r6, [%r5], 1;\nmov.u32 %r7, %reserved_smem_offset_begin;\nsetp.ge.u32 %p1, %r7, 164;\n"
                   "selp.u32 %r8, 10, 0, %p1;\nadd.u32 %r6, %r6, %r8;\nst.global.u32 [%rd1], %r6;\ngriddepcontrol.launch_dependents;")});
  Buffer<std::uint32_t> out(device.memory, 20, 99);
  device.launch("k", {20}, {1}, Parameters(out, 0ULL, 0ULL, 0ULL), 100);
  for (std::size_t i = 0; i < 20; ++i) CHECK(out[i] == 10);
}

TEST_CASE("atomics: wrap-around increments, minimum, compare and swap, floating point, no result") {
  TestDevice device;
  device.load(
      {kernel_text("ld.param.u64 %rd10, [out];\natom.global.inc.u32 %r5, [%rd10], 9;\natom.global.min.s32 %r6, [%rd10+4], -7;\nred.global.add.f32 "
                   "[%rd10+8], 0f3F800000;\n"
                   "atom.global.cas.b32 %r7, [%rd10+12], 0, 5;\natom.global.add.f64 %fd1, [%rd10+16], "
                   "0d3FE0000000000000;\nred.relaxed.gpu.global.max.u64 [%rd10+24], %rd5;\n"
                   "atom.add.release.gpu.u32 %r8, [%rd10+32], 1;\natom.global.dec.u32 %r9, [%rd10+36], 9;\n")});
  Buffer<std::uint32_t> out(device.memory, 10);
  device.launch("k", {2}, {32}, Parameters(out, 0ULL, 0ULL, 0ULL));
  CHECK(out[0] == 4);
  CHECK(out[1] == static_cast<std::uint32_t>(-7));
  CHECK(std::bit_cast<float>(out[2]) == 64.0F);
  CHECK(out[3] == 5);
  double sum = 0;
  std::memcpy(&sum, out.data() + 4, 8);
  CHECK(sum == 32.0);
  CHECK(out[6] == 63 * 8);
  CHECK(out[8] == 64);
  CHECK(out[9] == 6);
}

TEST_CASE("generic addresses reach shared and local memory and parameters") {
  TestDevice device;
  device.load(
      {kernel_text(".shared .align 4 .b8 s[128];\n.local .align 4 .b8 l[16];\nmov.u64 %rd10, s;\ncvta.shared.u64 %rd11, %rd10;\nmov.u64 %rd12, "
                   "l;\ncvta.local.u64 %rd13, %rd12;\n"
                   "shl.b32 %r5, %r4, 2;\ncvt.u64.u32 %rd14, %r5;\nadd.u64 %rd15, %rd11, %rd14;\nst.u32 [%rd15], %r4;\nst.u32 [%rd13+8], "
                   "%r4;\nld.local.u32 %r6, [l+8];\nld.shared.u32 %r7, [s+12];\n"
                   "isspacep.shared %p1, %rd15;\nisspacep.local %p2, %rd13;\nisspacep.global %p3, %rd1;\nand.pred %p4, %p1, %p2;\nand.pred %p4, %p4, "
                   "%p3;\nselp.u32 %r8, 1000, 0, %p4;\n"
                   "cvta.to.shared.u64 %rd16, %rd15;\ncvt.u32.u64 %r9, %rd16;\nsub.u32 %r9, %r9, %r5;\nadd.u32 %r10, %r6, %r7;\nadd.u32 %r10, %r10, "
                   "%r8;\nadd.u32 %r10, %r10, %r9;\nst.u32 [%rd1], %r10;")});
  Buffer<std::uint32_t> out(device.memory, 32);
  device.launch("k", {1}, {32}, Parameters(out, 0ULL, 0ULL, 0ULL));
  for (std::size_t i = 0; i < 32; ++i) CHECK(out[i] == i + 3 + 1000);
}

TEST_CASE("a kernel that polls the host sees its store, and the host sees the kernel's") {
  TestDevice device;
  device.load(
      {kernel_text("ld.param.u64 %rd10, [out];\nst.volatile.global.u32 [%rd10+4], 1;\nPOLL:\nld.acquire.sys.global.u32 %r5, [%rd10];\nsetp.eq.u32 "
                   "%p1, %r5, 0;\n@%p1 bra POLL;\nst.release.sys.global.u32 [%rd10+8], %r5;")});
  Buffer<std::uint32_t> words(device.memory, 3);
  std::thread host([&] {
    while (__atomic_load_n(&words[1], __ATOMIC_ACQUIRE) == 0) std::this_thread::yield();
    __atomic_store_n(&words[0], 42U, __ATOMIC_RELEASE);
  });
  device.launch("k", {1}, {32}, Parameters(words, 0ULL, 0ULL, 0ULL));
  host.join();
  CHECK(words[2] == 42);
}

TEST_CASE("a barrier that nobody completes can be cancelled") {
  TestDevice device;
  device.load({kernel_text("setp.lt.u32 %p1, %r4, 32;\n@%p1 bra OTHER;\nbar.sync 1, 96;\nOTHER:\nret;")});
  std::thread host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    device.cancel = true;
  });
  const LaunchOutcome outcome = device.try_launch("k", {1}, {64}, Parameters(0ULL, 0ULL, 0ULL, 0ULL));
  host.join();
  CHECK(outcome.fault == Fault::cancelled);
}

}  // namespace mpsshim::ptx::test
