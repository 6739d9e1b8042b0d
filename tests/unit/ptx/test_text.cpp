// SPDX-License-Identifier: Apache-2.0
// Reading PTX: what is accepted, what is refused and where, parameter layouts, globals, several texts.
#include <cmath>

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

TEST_CASE("what is not executed is named with instruction and kernel, before its operands are read") {
  struct Refusal {
    const char* instruction;
    const char* what;
    const char* where;
  };
  const Refusal kRefusals[] = {
      {"tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [%rd1, {%f1,%f2}];", "textures are not supported", "'tex.2d.v4.f32.f32'"},
      {"tld4.r.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [%rd1, {%f1,%f2}];", "textures are not supported", "'tld4.r.2d.v4.f32.f32'"},
      {"txq.width.b32 %r5, [%rd1];", "textures are not supported", "'txq.width.b32'"},
      {"suld.b.2d.b32.trap {%r5}, [%rd1, {%r1, %r2}];", "surfaces are not supported", "'suld.b.2d.b32.trap'"},
      {"sust.b.2d.b32.trap [%rd1, {%r1, %r2}], {%r5};", "surfaces are not supported", "'sust.b.2d.b32.trap'"},
      {"wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r2, %r3, %r4, %r5, %r6, %r7, %r8, %r9}, [%rd6], %r1;", "tensor cores",
       "'wmma.load.a.sync.aligned.row.m16n16k16.global.f16'"},
      {"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd1,%fd2}, {%fd3}, {%fd4}, {%fd1,%fd2};", "tensor cores", "'mma.sync"},
      {"ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r1];", "tensor cores", "'ldmatrix"},
      {"mbarrier.init.shared.b64 [%r1], %r2;", "asynchronous barriers", "'mbarrier.init.shared.b64'"},
      {"cp.async.ca.shared.global [%r1], [%rd1], 4, 4;", "asynchronous copies", "'cp.async.ca.shared.global'"},
      {"mapa.u64 %rd4, %rd1, 0;", "thread block clusters", "'mapa.u64'"},
      {"mov.u32 %r5, %cluster_ctarank.x;", "thread block clusters", "'%cluster_ctarank'"},
      {"vabsdiff4.u32.u32.u32.add %r5, %r1, %r2, %r3;", "video instructions", "'vabsdiff4"},
  };
  for (const Refusal& refusal : kRefusals) {
    INFO(refusal.instruction);
    const Error error = error_of({kernel_text(refusal.instruction)});
    CHECK(error.code == ErrorCode::invalid_ptx);
    CHECK(error.line > 1);
    CHECK(error.text.find(std::string(refusal.what)) != std::string::npos);
    CHECK(error.text.find("by the CPU driver") != std::string::npos);
    CHECK(error.text.find(refusal.where) != std::string::npos);
    CHECK(error.text.find(" in 'k'") != std::string::npos);
  }
  CHECK(error_of({kHead + ".global .texref picture;\n"}).text.find("textures are not supported") != std::string::npos);
  CHECK(error_of({kHead + ".visible .entry k() .reqnctapercluster 2, 1, 1 { ret; }\n"}).text.find("clusters are not supported") != std::string::npos);
  const Error conditional = error_of({kernel_text("{ .param .b64 h; st.param.b64 [h], %rd1; call.uni cudaGraphSetSomething, (h); }",
                                                  ".extern .func cudaGraphSetSomething(.param .b64 h);\n")});
  CHECK(conditional.code == ErrorCode::invalid_ptx);
  CHECK(conditional.text.find("calls of cudaGraphSetSomething by kernels are not supported by the CPU driver") != std::string::npos);
  // What is known, but not in this form.
  CHECK(error_of({kernel_text("add.s32.fast %r5, %r1, %r1;")}).text.find("'add.s32.fast' in 'k'") != std::string::npos);
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

TEST_CASE("a weak definition gives way to another, whichever comes first, two that are not weak are refused") {
  const auto text_with = [](const std::string& linkage, int value) {
    return kHead + linkage + " .global .u32 number = " + std::to_string(value) + ";\n" + linkage +
           " .func (.param .b32 r) get() { st.param.b32 [r], " + std::to_string(value) + "; ret; }\n";
  };
  const std::string user = kernel_text(
      "{ .param .b32 r; call.uni (r), get, (); ld.param.b32 %r6, [r]; }\nld.global.u32 %r7, [number];\nmad.lo.u32 %r6, %r6, 100, "
      "%r7;\nst.global.u32 [%rd1], %r6;",
      ".extern .global .u32 number;\n.extern .func (.param .b32 r) get();\n");
  const std::string weak1 = text_with(".weak", 1);
  const std::string weak2 = text_with(".weak", 2);
  const std::string strong = text_with(".visible", 3);
  const std::vector<std::pair<std::vector<std::string>, std::uint32_t>> cases = {
      {{user, weak1, weak2}, 101}, {{user, weak1, strong}, 303}, {{strong, weak1, user}, 303}, {{weak1, user, strong, weak2}, 303}};
  for (const auto& [texts, want] : cases) {
    TestDevice device;
    device.load(texts);
    Buffer<std::uint32_t> out(device.memory, 1);
    device.launch("k", {1}, {1}, Parameters(out, 0ULL, 0ULL, 0ULL));
    CHECK(out[0] == want);
    CHECK(device.module->globals().size() == 1);
  }
  const Error error = error_of({user, strong, text_with(".visible", 4)});
  CHECK(error.code == ErrorCode::invalid_ptx);
  CHECK(error.text.find("'number' is defined twice") != std::string::npos);
}

TEST_CASE("a kernel of several texts is one, and names without .visible are each text's own") {
  const std::string once = ".weak .entry both() { ret; }\n";
  const auto text_of = [&](const std::string& kernel, int value) {
    return kHead + once + ".global .u32 own = " + std::to_string(value) + ";\n.visible .entry " + kernel +
           "(.param .u64 out) { .reg .b64 %rd<2>; .reg .b32 %r<2>; ld.param.u64 %rd1, [out]; ld.global.u32 %r1, [own]; st.global.u32 [%rd1], %r1; "
           "ret; "
           "}\n";
  };
  TestDevice device;
  device.load({text_of("first", 11), text_of("second", 22)});
  CHECK(device.module->kernels().size() == 3);
  Buffer<std::uint32_t> out(device.memory, 1);
  device.launch("first", {1}, {1}, Parameters(out));
  CHECK(out[0] == 11);
  device.launch("second", {1}, {1}, Parameters(out));
  CHECK(out[0] == 22);
}

TEST_CASE("a kernel whose address another one takes is not part of it") {
  const auto module =
      load({kHead +
            ".visible .entry child() { .shared .align 4 .b8 s[4096]; .local .align 4 .b8 l[512]; .reg .b32 %r<2>; .reg .b64 %rd<2>; mov.u32 %r1, s; "
            "mov.u64 %rd1, l; ret; }\n"
            ".visible .entry parent() { .reg .b64 %rd<2>; mov.u64 %rd1, child; ret; }\n"});
  const auto& parent = module->kernels()[*module->find_kernel("parent")];
  CHECK(parent.static_shared_bytes == 0);
  CHECK(parent.local_bytes == 0);
}

TEST_CASE("mad.f32 without rounding: in old texts to the nearest, refused in newer ones") {
  std::string text = kernel_text("mad.f32 %f4, 0f3F801000, 0f3F801000, 0fBF802000;\nst.global.f32 [%rd1], %f4;");
  CHECK(error_of({text}).text.find("mad.f32") != std::string::npos);
  for (const char* version : {"1.4", "3.1"}) {
    const std::string old = text.replace(text.find(".version"), 12, std::string(".version ") + version);
    TestDevice device;
    device.load({old});
    Buffer<float> out(device.memory, 1);
    device.launch("k", {1}, {1}, Parameters(out, 0ULL, 0ULL, 0ULL));
    CHECK(out[0] == std::ldexp(1.0F, -22));  // not rounded in between: (1 + 2^-11)^2 - (1 + 2^-10)
  }
}

TEST_CASE("directives that tune say nothing about the result") {
  const auto module = load({kHead + ".visible .entry k() .maxntid 128, 1, 1 .minnctapersm 2 .maxnreg 32 { ret; }\n"});
  CHECK(module->kernels()[0].max_threads_per_block == 128);
  CHECK(load({kHead + ".visible .entry k()\n.maxnreg 32\n{ ret; }\n"})->kernels().size() == 1);
}

TEST_CASE("a kernel takes as many registers as leave room for its largest block, and no more than .maxnreg") {
  const std::string body = " { .reg .b32 %r<900>; ret; }\n";
  CHECK(load({kHead + ".visible .entry k() { .reg .b32 %r<60>; ret; }\n"})->kernels()[0].registers == 36);
  CHECK(load({kHead + ".visible .entry k()" + body})->kernels()[0].registers == 64);
  CHECK(load({kHead + ".visible .entry k() .maxntid 384" + body})->kernels()[0].registers == 168);
  CHECK(load({kHead + ".visible .entry k() .reqntid 64" + body})->kernels()[0].registers == 255);
  CHECK(load({kHead + ".visible .entry k() .maxnreg 40" + body})->kernels()[0].registers == 40);
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
