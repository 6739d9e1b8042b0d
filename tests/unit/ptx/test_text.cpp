// SPDX-License-Identifier: Apache-2.0
// Reading PTX: what is accepted, what is refused and where, parameter layouts, globals, several texts.
#include "tests/unit/ptx/test_device.hpp"

namespace mpsshim::ptx::test {
namespace {

Error error_of(const std::vector<std::string>& texts) {
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  Error error;
  CHECK(compile(views, error) == nullptr);
  return error;
}

std::shared_ptr<const Module> load(const std::vector<std::string>& texts) {
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  Error error;
  auto module = compile(views, error);
  INFO(error.text);
  REQUIRE(module != nullptr);
  return module;
}

const std::string kHead = ".version 8.0\n.target sm_90\n.address_size 64\n";

}  // namespace

TEST_CASE("an unknown opcode or modifier fails the load with its line") {
  const char* const kRefused[] = {"frobnicate.b32 %r5, %r1;",
                                  "add.bf16x4 %r5, %r1, %r1;",
                                  "add.s32.fast %r5, %r1, %r1;",
                                  "ld.global.v8.b32 %r5, [%rd1];",
                                  "cvt.rn.satfinite.e4m3x2.f32 %rs1, %f1, %f2;",
                                  "shfl.bfly.b32 %r5, %r1, 1, 31;",
                                  "mul.s32 %r5, %r1, %r1;",
                                  "div.f32 %f1, %f1, %f1;",
                                  "add.f16.ftz %rs1, %rs1, %rs2;",
                                  "tex.2d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [t, {%r1,%r2}];",
                                  "atom.global.add.v2.f32 {%f1,%f2}, [%rd1], {%f1,%f2};",
                                  "mov.u32 %r5, %nosuch;",
                                  "add.s32 %r5, %r99, 1;",
                                  "add.s32 %rd1, %r1, 1;",
                                  "add.s32 %r5, %r1;",
                                  "bra nowhere;",
                                  "ld.shared.u32 %r5, [a];"};
  for (const char* instruction : kRefused) {
    INFO(instruction);
    const std::string text = kernel_text(std::string("// a comment\n") + instruction);
    const auto at = text.find(instruction);
    const auto line = static_cast<std::uint32_t>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1);
    const Error error = error_of({text});
    CHECK(error.code == ErrorCode::invalid_ptx);
    CHECK(error.line == line);
    CHECK(error.text.find("line " + std::to_string(line)) != std::string::npos);
  }
}

TEST_CASE("texts that end early or are no PTX are refused") {
  const std::string whole = kernel_text("{ .reg .b32 t; mov.u32 t, 5; st.global.u32 [%rd1], t; }");
  load({whole});
  for (std::size_t length = 0; length + 3 < whole.size(); ++length) {
    const std::vector<std::string> texts{whole.substr(0, length)};
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    Error error;
    const auto module = compile(views, error);  // Only a cut between directives leaves something whole, without kernels.
    if (module != nullptr) REQUIRE(module->kernels().empty());
  }
  CHECK(error_of({"\x7f"
                  "ELF"})
            .code == ErrorCode::invalid_ptx);
  CHECK(error_of({""}).code == ErrorCode::invalid_ptx);
}

TEST_CASE("a terminating NUL and padding end the text") {
  std::string text = kernel_text("");
  text.append(5, '\0');
  text += "garbage";
  CHECK(load({text})->kernels().size() == 1);
}

TEST_CASE("parameter layout, and .ptr .align that is the pointee's") {
  const auto module = load({kHead + ".visible .entry p(.param .u64 .ptr .align 1 a, .param .u8 b, .param .align 8 .b8 c[20], .param .u16 d, .param "
                                    ".f64 e, .param .align 16 .b8 f[16], .param .u32 .ptr .global .align 64 g)\n"
                                    ".maxntid 128, 2, 1\n.minnctapersm 2\n{ ret; }\n"});
  const KernelInfo& kernel = module->kernels()[0];
  const std::uint32_t expected[][2] = {{0, 8}, {8, 1}, {16, 20}, {36, 2}, {40, 8}, {48, 16}, {64, 4}};
  REQUIRE(kernel.parameters.size() == 7);
  for (std::size_t i = 0; i < 7; ++i) {
    CHECK(kernel.parameters[i].offset == expected[i][0]);
    CHECK(kernel.parameters[i].size == expected[i][1]);
  }
  CHECK(kernel.parameter_bytes == 68);
  CHECK(kernel.max_threads_per_block == 256);
  CHECK(kernel.ptx_version == 80);
  CHECK(kernel.target_sm == 90);
}

TEST_CASE(".pragma after a label, debug sections, nested scopes with their own labels and registers") {
  TestDevice device;
  device.load(
      {kernel_text(
           "mov.u32 %r5, 0;\nLOOP: .pragma \"nounroll\";\nadd.u32 %r5, %r5, 1;\n.loc 1 2 3\nsetp.lt.u32 %p1, %r5, 10;\n@%p1 bra LOOP;\n"
           "{\n.reg .pred p;\n.reg .b32 t;\nmov.b32 t, 0;\nLOOP:\nadd.u32 t, t, 3;\nsetp.lt.u32 p, t, 30;\n@p bra LOOP;\nadd.u32 %r5, %r5, t;\n}\n"
           "st.global.u32 [%rd1], %r5;",
           ".file 1 \"x.cu\"\n") +
       ".section .debug_str { info: .b8 1, 2\n.b64 label+3 }\n"});
  Buffer<std::uint32_t> out(device.memory, 32);
  device.launch("k", {1}, {32}, Parameters(out, 0ULL, 0ULL, 0ULL));
  CHECK(out[31] == 40);
}

TEST_CASE("initial values: numbers, addresses, generic(), byte masks, structures of words") {
  TestDevice device;
  device.load({kernel_text("ret;",
                           ".visible .global .align 4 .u32 numbers[4] = {1, 0x10, -1};\n.visible .const .f32 real = 0f3F800000;\n"
                           ".visible .global .align 8 .u64 addresses[3] = {7, numbers+4, generic(real)};\n"
                           ".visible .global .align 8 .b8 packed[12] = {9, 0, 0, 0, 0xFF(numbers), 0xFF00(numbers), 0xFF0000(numbers), "
                           "0xFF000000(numbers), 0xFF00000000(numbers), "
                           "0xFF0000000000(numbers), 0xFF000000000000(numbers), 0xFF00000000000000(numbers)};\n.visible .global .attribute(.managed) "
                           ".align 4 .u32 managed = 3;\n")});
  const auto at = [&](const char* name) { return device.instance->global_address(*device.module->find_global(name)); };
  const auto* words = reinterpret_cast<const std::uint64_t*>(at("addresses"));
  CHECK(words[0] == 7);
  CHECK(words[1] == at("numbers") + 4);
  CHECK(words[2] == at("real"));
  std::uint64_t packed = 0;
  std::memcpy(&packed, reinterpret_cast<const char*>(at("packed")) + 4, 8);
  CHECK(packed == at("numbers"));
  CHECK(reinterpret_cast<const std::uint32_t*>(at("numbers"))[2] == 0xffffffff);
  CHECK(*reinterpret_cast<const float*>(at("real")) == 1.0F);
  CHECK(device.module->globals()[*device.module->find_global("managed")].is_managed);
  CHECK_FALSE(device.module->globals()[*device.module->find_global("real")].may_be_written);
}

TEST_CASE("several texts are one symbol table") {
  const std::string callee = kHead +
                             ".visible .global .u32 scale = 5;\n.visible .func (.param .b32 r) times(.param .b32 x)\n{ .reg .b32 %r<4>; "
                             "ld.param.b32 %r1, [x]; ld.global.u32 %r2, [scale]; mul.lo.u32 %r3, %r1, %r2; st.param.b32 [r], %r3; ret; }\n";
  const std::string caller = kernel_text(
      "{ .param .b32 x; st.param.b32 [x], %r1; .param .b32 r; call.uni (r), times, (x); ld.param.b32 %r6, [r]; }\nld.global.u32 %r7, "
      "[scale];\nadd.u32 %r6, %r6, %r7;\nst.global.u32 [%rd1], %r6;",
      ".extern .global .u32 scale;\n.extern .func (.param .b32 r) times(.param .b32 x);\n");
  TestDevice device;
  device.load({caller, callee});
  Buffer<std::uint32_t> out(device.memory, 32);
  device.launch("k", {1}, {32}, Parameters(out, 0ULL, 0ULL, 0ULL));
  CHECK(out[31] == 31 * 5 + 5);
  CHECK(error_of({caller}).code == ErrorCode::not_found);
}

TEST_CASE("a launch that does not fit its kernel is refused") {
  TestDevice device;
  device.load(
      {kHead + ".visible .entry k(.param .u64 a) .reqntid 32, 1, 1 { .shared .align 4 .b8 s[1024]; .reg .b32 %r<3>; mov.u32 %r1, s; ret; }\n"});
  CHECK(device.module->kernels()[0].static_shared_bytes == 1024);
  CHECK(device.try_launch("k", {1}, {32}, Parameters(0ULL)).fault == Fault::none);
  CHECK(device.try_launch("k", {1}, {64}, Parameters(0ULL)).fault == Fault::invalid_value);
  CHECK(device.try_launch("k", {1}, {32}, Parameters(0U)).fault == Fault::invalid_value);
  CHECK(device.try_launch("k", {0}, {32}, Parameters(0ULL)).fault == Fault::invalid_value);
  CHECK(device.try_launch("k", {1}, {32}, Parameters(0ULL), 227 * 1024 - 1024).fault == Fault::none);
  CHECK(device.try_launch("k", {1}, {32}, Parameters(0ULL), 227 * 1024 - 1023).fault == Fault::invalid_value);
  CHECK(device.try_launch("k", {2000}, {32}, Parameters(0ULL), 0, true).fault == Fault::cooperative_too_large);
}

}  // namespace mpsshim::ptx::test
