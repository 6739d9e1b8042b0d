// SPDX-License-Identifier: Apache-2.0
#include "tests/process/programs/random_order/order_kernels.hpp"

#include <algorithm>
#include <cstddef>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {

namespace {

constexpr std::array<std::uint32_t, kOrderModules> kConstants = {12345u, 0x9e3779b9u, 77u};
constexpr std::uint32_t kBumpFactor = 1664525u;
constexpr unsigned kBlobReads = 8;

// Every kernel of one thread a word begins and ends alike: %r6 is its index, %rd1 the address of its word, %r8 the word.
const std::string kBegin = R"ptx(
    .reg .pred %p<3>;
    .reg .b32 %r<20>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [count];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r6, 4;
    add.s64 %rd1, %rd1, %rd2;
    ld.global.u32 %r8, [%rd1];
)ptx";
const std::string kEnd = R"ptx(
    add.u32 %r8, %r8, @K;
    st.global.u32 [%rd1], %r8;
DONE:
    ret;
}
)ptx";

std::string affine_text() {
  return ".visible .entry affine(.param .u64 data, .param .u32 count, .param .u32 a, .param .u32 b)\n{" + kBegin + R"ptx(
    ld.param.u32 %r9, [a];
    ld.param.u32 %r10, [b];
    mad.lo.u32 %r8, %r8, %r9, %r10;
)ptx" + kEnd;
}

std::string slow_text() {
  return ".visible .entry slow(.param .u64 data, .param .u32 count, .param .u32 a, .param .u32 b, .param .u32 rounds)\n{" + kBegin + R"ptx(
    ld.param.u32 %r9, [a];
    ld.param.u32 %r10, [b];
    ld.param.u32 %r11, [rounds];
AGAIN:
    setp.eq.u32 %p2, %r11, 0;
    @%p2 bra OVER;
    mad.lo.u32 %r8, %r8, %r9, %r10;
    sub.u32 %r11, %r11, 1;
    bra AGAIN;
OVER:
)ptx" + kEnd;
}

std::string combine_text() {
  return ".visible .entry combine(.param .u64 data, .param .u64 source, .param .u32 count, .param .u32 a)\n{" + kBegin + R"ptx(
    ld.param.u64 %rd3, [source];
    cvta.to.global.u64 %rd3, %rd3;
    add.s64 %rd3, %rd3, %rd2;
    ld.global.u32 %r10, [%rd3];
    ld.param.u32 %r9, [a];
    mad.lo.u32 %r8, %r8, %r9, %r10;
)ptx" + kEnd;
}

// All threads of the block pass the barrier, also those beyond `count`.
const char kRotateText[] = R"ptx(
.extern .shared .align 4 .b8 line[];
.visible .entry rotate(.param .u64 data, .param .u32 count, .param .u32 a)
{
    .reg .pred %p<3>;
    .reg .b32 %r<20>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r9, [a];
    mov.u32 %r5, %tid.x;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r5, 4;
    add.s64 %rd1, %rd1, %rd2;
    mov.u32 %r12, line;
    shl.b32 %r13, %r5, 2;
    add.u32 %r14, %r12, %r13;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra STORED;
    ld.global.u32 %r8, [%rd1];
    st.shared.u32 [%r14], %r8;
STORED:
    bar.sync 0;
    @%p1 bra DONE;
    add.u32 %r15, %r5, 1;
    setp.eq.u32 %p2, %r15, %r1;
    selp.b32 %r15, 0, %r15, %p2;
    shl.b32 %r15, %r15, 2;
    add.u32 %r15, %r12, %r15;
    ld.shared.u32 %r8, [%r15];
    mul.lo.u32 %r8, %r8, %r9;
    add.u32 %r8, %r8, @K;
    st.global.u32 [%rd1], %r8;
DONE:
    ret;
}
)ptx";

const char kBumpText[] = R"ptx(
.visible .global .align 4 .u32 state = 0;
.visible .entry bump()
{
    .reg .b32 %r<3>;
    ld.global.u32 %r1, [state];
    mul.lo.u32 %r1, %r1, 1664525;
    add.u32 %r1, %r1, @K;
    st.global.u32 [state], %r1;
    ret;
}
)ptx";

// Spread over the whole of it, first and last word among them.
unsigned blob_index(unsigned words, unsigned read) { return read * (words - 1) / (kBlobReads - 1); }

std::string blob_name(unsigned words) { return "blob_" + std::to_string(words); }

std::string blob_text(unsigned words) {
  std::string text = ".visible .entry " + blob_name(words) + "(.param .u64 data, .param .u32 count, .param .align 4 .b8 words[" +
                     std::to_string(words * 4) + "])\n{" + kBegin;
  for (unsigned read = 0; read < kBlobReads; ++read) {
    text += "    ld.param.u32 %r9, [words+" + std::to_string(blob_index(words, read) * 4) + "];\n    mad.lo.u32 %r8, %r8, 3, %r9;\n";
  }
  return text + kEnd;
}

std::string module_text(std::uint32_t constant) {
  std::string text = ".version 6.4\n.target sm_75\n.address_size 64\n" + affine_text() + slow_text() + combine_text() + kRotateText + kBumpText;
  for (const unsigned words : kBlobWords) text += blob_text(words);
  const std::string number = std::to_string(constant);
  for (std::size_t at = text.find("@K"); at != std::string::npos; at = text.find("@K", at)) text.replace(at, 2, number);
  return text;
}

}  // namespace

void OrderKernels::load(std::size_t index) {
  constant = kConstants[index];
  CU(cuModuleLoadData(&module, module_text(constant).c_str()));
  const auto look_up = [&](CUfunction& function, const std::string& name) { CU(cuModuleGetFunction(&function, module, name.c_str())); };
  look_up(affine, "affine");
  look_up(slow, "slow");
  look_up(combine, "combine");
  look_up(rotate, "rotate");
  look_up(bump, "bump");
  for (std::size_t i = 0; i < kBlobWords.size(); ++i) look_up(blob[i], blob_name(kBlobWords[i]));
  std::size_t size_bytes = 0;
  CU(cuModuleGetGlobal(&state, &size_bytes, module, "state"));
}

void model_affine(std::span<std::uint32_t> words, std::uint32_t a, std::uint32_t b, std::uint32_t k) {
  for (std::uint32_t& word : words) word = a * word + b + k;
}

// The rounds as one map x -> A*x + B, by squaring.
void model_slow(std::span<std::uint32_t> words, std::uint32_t a, std::uint32_t b, std::uint32_t rounds, std::uint32_t k) {
  std::uint32_t all_a = 1, all_b = 0;
  for (std::uint32_t left = rounds; left > 0; left >>= 1) {
    if ((left & 1) != 0) {
      all_b = a * all_b + b;
      all_a *= a;
    }
    b = a * b + b;
    a *= a;
  }
  model_affine(words, all_a, all_b, k);
}

void model_combine(std::span<std::uint32_t> words, std::span<const std::uint32_t> source, std::uint32_t a, std::uint32_t k) {
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = a * words[i] + source[i] + k;
}

void model_rotate(std::span<std::uint32_t> words, std::uint32_t a, std::uint32_t k) {
  std::rotate(words.begin(), words.begin() + 1, words.end());
  for (std::uint32_t& word : words) word = a * word + k;
}

void model_bump(std::uint32_t& state, std::uint32_t k) { state = state * kBumpFactor + k; }

void model_blob(std::span<std::uint32_t> words, std::span<const std::uint32_t> blob, std::uint32_t k) {
  for (std::uint32_t& word : words) {
    for (unsigned read = 0; read < kBlobReads; ++read) word = 3 * word + blob[blob_index(static_cast<unsigned>(blob.size()), read)];
    word += k;
  }
}

}  // namespace mpsshim::test
