// SPDX-License-Identifier: Apache-2.0
// Which kernels may write to which variables, of the same kernels as machine code of several architectures and as text.
#include <string>

#include "proto/image/variable_uses.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/image/image_files.hpp"

namespace mpsshim::image {
namespace {

using Set = std::set<std::string, std::less<>>;

Set written_by(const VariableUses& uses, const std::string& kernel) {
  const auto found = uses.kernels.find(kernel);
  return found == uses.kernels.end() ? Set{} : found->second.variables;
}
bool leaves(const VariableUses& uses, const std::string& kernel) {
  const auto found = uses.kernels.find(kernel);
  return found != uses.kernels.end() && found->second.leaves_addresses;
}

VariableUses of_text(const std::string& body) {
  return variable_uses_of_ptx(".version 7.0\n.target sm_75\n.address_size 64\n.global .u32 counter;\n.global .u32 other;\n.const .u32 fixed;\n" +
                              body);
}
std::string entry(const std::string& body) {
  return ".visible .entry k(.param .u64 p) {\n.reg .b64 %rd<9>;\n.reg .b32 %r<9>;\n" + body + "ret;\n}\n";
}

}  // namespace

TEST_CASE("machine code: a kernel may write to what it refers to, and to nothing else") {
  const std::string file = GENERATE("uses_75.cubin", "uses_80.cubin", "uses_90.cubin", "uses_100.cubin", "uses_120.cubin");
  if (!test::image_exists(file)) MPSSHIM_SKIP("this nvcc cannot make " + file);
  INFO(file);
  const VariableUses uses = variable_uses_of_cubin(test::load_image(file));
  REQUIRE(uses.are_known);
  CHECK(uses.kernel_count == 11);
  for (const std::string kernel : {"touches_none", "asserts", "reads_constant"}) CHECK(written_by(uses, kernel) == Set{});
  for (const std::string kernel : {"counts", "calls", "leaves"}) CHECK(written_by(uses, kernel) == Set{"counter"});
  for (const std::string kernel : {"reads", "stores", "stores_in_loop"}) CHECK(written_by(uses, kernel) == Set{"table"});
  CHECK(written_by(uses, "stores_both") == Set{"counter", "wide"});
  CHECK(written_by(uses, "leaves_one_of_two") == Set{"counter", "table"});
  CHECK(uses.constants == Set{"weights"});
  CHECK(leaves(uses, "counts"));  // who has the address may leave it: machine code is not followed
}

// Functions are called by address there, and may be called by anybody.
TEST_CASE("machine code in parts, linked or for debuggers: what functions refer to counts for every kernel") {
  const VariableUses uses = variable_uses_of_cubin(test::load_image(GENERATE(as<std::string>(), "uses_linked.cubin", "uses_debug.cubin")));
  REQUIRE(uses.are_known);
  CHECK(written_by(uses, "touches_none") == Set{"counter"});
  CHECK(written_by(uses, "stores") == Set{"counter", "table"});
}

TEST_CASE("an address in a variable: every kernel may do anything") {
  CHECK_FALSE(variable_uses_of_cubin(test::load_image("uses_addresses.cubin")).are_known);
  CHECK_FALSE(variable_uses_of_ptx(test::as_text(test::load_image("uses_addresses.ptx"))).are_known);
  CHECK_FALSE(variable_uses_of_ptx(test::as_text(test::load_image("uses_functions.ptx"))).are_known);
  CHECK_FALSE(variable_uses_of_cubin(test::load_image("uses_functions_linked.cubin")).are_known);
}

TEST_CASE("text: an address is followed, so who only reads writes to nothing") {
  const VariableUses uses = variable_uses_of_ptx(test::as_text(test::load_image("uses.ptx")));
  REQUIRE(uses.are_known);
  CHECK(uses.constants == Set{"weights"});
  CHECK(uses.kernel_count == 11);
  for (const std::string kernel : {"touches_none", "asserts", "reads_constant", "reads"}) CHECK(written_by(uses, kernel) == Set{});
  for (const std::string kernel : {"counts", "calls"}) CHECK(written_by(uses, kernel) == Set{"counter"});
  for (const std::string kernel : {"stores", "stores_in_loop"}) CHECK(written_by(uses, kernel) == Set{"table"});
  CHECK(written_by(uses, "stores_both") == Set{"counter", "wide"});
  for (const std::string kernel : {"counts", "calls", "stores", "stores_in_loop", "stores_both"}) CHECK_FALSE(leaves(uses, kernel));
  CHECK(leaves(uses, "leaves"));
  CHECK(written_by(uses, "leaves_one_of_two") == Set{"counter", "table"});
  CHECK(leaves(uses, "leaves_one_of_two"));
}

TEST_CASE("text, for debuggers: the lines it names do not hide instructions") {
  const VariableUses uses = variable_uses_of_ptx(test::as_text(test::load_image("uses_lines.ptx")));
  REQUIRE(uses.are_known);
  CHECK(written_by(uses, "touches_none") == Set{});
  CHECK(written_by(uses, "stores_in_loop") == Set{"table"});
}

TEST_CASE("text: where an address goes") {
  const auto of = [](const std::string& body) { return of_text(entry(body)); };
  CHECK(written_by(of("st.global.u32 [counter], 1;\n"), "k") == Set{"counter"});
  CHECK(written_by(of("ld.global.u32 %r1, [counter];\n"), "k") == Set{});
  CHECK(written_by(of("red.global.add.u32 [counter+0], 1;\n"), "k") == Set{"counter"});
  CHECK(written_by(of("mov.u64 %rd1, counter;\n@%p1 add.s64 %rd2, %rd1, 4;\nst.u32 [%rd2], 1;\n"), "k") == Set{"counter"});
  // The store stands in front of what makes its address.
  CHECK(written_by(of("L1: st.u32 [%rd2], 1;\nmov.u64 %rd2, other;\nbra L1;\n"), "k") == Set{"other"});
  CHECK(written_by(of("{ mov.b64 {%r1, %r2}, counter; mov.b64 %rd3, {%r1, %r2}; st.u32 [%rd3], 1; }\n"), "k") == Set{"counter"});
  CHECK_FALSE(leaves(of("st.global.u32 [counter], 1;\n"), "k"));
  CHECK(leaves(of("mov.u64 %rd1, counter;\nst.global.u64 [%rd4], %rd1;\n"), "k"));
  CHECK(leaves(of("mov.u64 %rd1, counter;\natom.exch.b64 %rd5, [%rd4], %rd1;\n"), "k"));
  CHECK(leaves(of("mov.u64 %rd1, counter;\nnever_heard_of.u64 %rd5, %rd1;\n"), "k"));
  CHECK(written_by(of("mov.u64 %rd1, fixed;\nst.u32 [%rd1], 1;\n"), "k") == Set{});  // a constant
  CHECK_FALSE(of(".loc 1 2 3; mov.u64 %rd1, counter;\n").are_known);
  CHECK_FALSE(of("mov.u64 %rd1, k;\n").are_known);
  CHECK_FALSE(of("st.u32 [counter, 1;\n").are_known);
  CHECK_FALSE(of_text(".extern .global .u32 elsewhere;\n").are_known);
  CHECK_FALSE(of_text(".visible .entry k() { st.u32 [counter], 1;").are_known);
  CHECK_FALSE(of_text(".func cudaLaunchDevice(.param .u64 p);\n").are_known);
}

TEST_CASE("text: calls") {
  const std::string function = ".func f(.param .u64 q) { .reg .b64 %rd<3>; mov.u64 %rd1, counter; st.u32 [%rd1], 1; ret; }\n";
  CHECK(written_by(of_text(function + entry("call f, (p0);\n")), "k") == Set{"counter"});
  CHECK(written_by(of_text(function + entry("")), "k") == Set{});
  CHECK(written_by(of_text(function + entry("call (r), %rd7, (p0), proto;\n")), "k") == Set{"counter"});
  CHECK(leaves(of_text(function + entry("mov.u64 %rd1, other;\nst.param.b64 [p0], %rd1;\ncall f, (p0);\n")), "k"));
}

TEST_CASE("either of two images: what both may do, or nothing is known") {
  VariableUses one{true, 2, {{"k", {{"a"}, false}}}};
  one.add({true, 2, {{"k", {{"b"}, true}}, {"l", {{"a"}, false}}}});
  REQUIRE(one.are_known);
  CHECK(written_by(one, "k") == Set{"a", "b"});
  CHECK(leaves(one, "k"));
  CHECK(written_by(one, "l") == Set{"a"});
  one.add({true, 3, {}});
  CHECK_FALSE(one.are_known);
  CHECK_FALSE(variable_uses_of_cubin({}).are_known);
}

}  // namespace mpsshim::image
