// SPDX-License-Identifier: Apache-2.0
// Images that nobody has seen before, and others in the place of those: one buffer holds the text of every module, a number in it changed.
#include <array>
#include <cstdio>
#include <cstring>
#include <vector>

#include "exercise.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

namespace {

constexpr unsigned kWords = 256;
constexpr char kText[] = R"ptx(
.version 6.4
.target sm_75
.address_size 64
.visible .entry step_text(.param .u64 data, .param .u32 count)
{
    .reg .pred %%p<2>;
    .reg .b32 %%r<8>;
    .reg .b64 %%rd<4>;
    ld.param.u64 %%rd1, [data];
    ld.param.u32 %%r1, [count];
    mov.u32 %%r3, %%ctaid.x;
    mov.u32 %%r4, %%ntid.x;
    mov.u32 %%r5, %%tid.x;
    mad.lo.s32 %%r6, %%r3, %%r4, %%r5;
    setp.ge.u32 %%p1, %%r6, %%r1;
    @%%p1 bra DONE;
    cvta.to.global.u64 %%rd1, %%rd1;
    mul.wide.u32 %%rd2, %%r6, 4;
    add.s64 %%rd3, %%rd1, %%rd2;
    ld.global.u32 %%r7, [%%rd3];
    xor.b32 %%r7, %%r7, %10u;
    mul.lo.u32 %%r7, %%r7, 2654435761;
    add.u32 %%r7, %%r7, %%r6;
    st.global.u32 [%%rd3], %%r7;
DONE:
    ret;
}
)ptx";

class Texts final : public Exercise {
 public:
  explicit Texts(const Tools& tools) : tools_(tools), data_(kWords * sizeof(Word)) {}
  void run() override;

 private:
  Tools tools_;
  DeviceMemory data_;
  std::array<char, sizeof kText + 16> text_{};
};

// Few different numbers, so that some texts come again, others not.
void Texts::run() {
  Workplace& work = tools_.work;
  const auto number = static_cast<unsigned>(work.random.one_in(3) ? work.random.word() : 1'000'000'007u + work.random.below(4));
  std::snprintf(text_.data(), text_.size(), kText, number);
  std::vector<Word> words(kWords);
  for (Word& word : words) word = work.random.word();
  const Stream& stream = work.any_stream();
  tools_.transfers.upload(stream, data_.address(), words);
  CUmodule module = nullptr;
  CUfunction step = nullptr;
  work.history.note("cuModuleLoadData of a text", {{"number", number}});
  CU(cuModuleLoadData(&module, text_.data()));
  std::memset(text_.data(), 'x', text_.size());
  CU(cuModuleGetFunction(&step, module, "step_text"));
  for (std::size_t left = 1 + work.random.below(4); left > 0; --left) {
    CUdeviceptr data = data_.address();
    unsigned count = kWords;
    void* arguments[] = {&data, &count};
    work.did();
    CU(cuLaunchKernel(step, kWords / 64, 1, 1, 64, 1, 1, 0, stream.handle, arguments, nullptr));
    for (unsigned i = 0; i < kWords; ++i) words[i] = (words[i] ^ number) * 2654435761u + i;
    work.keep_pace(stream);
  }
  const std::vector<Word> found = tools_.transfers.download(stream, data_.address(), kWords);
  work.history.note("cuModuleUnload");
  CU(cuModuleUnload(module));
  work.expect("what the kernel of a text has made", found, words);
  work.verified(Kind::texts);
}

}  // namespace

std::unique_ptr<Exercise> make_texts(const Tools& tools) { return std::make_unique<Texts>(tools); }

}  // namespace mpsshim::soak
