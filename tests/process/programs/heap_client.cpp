// SPDX-License-Identifier: Apache-2.0
// A client whose kernels take memory of the device's heap and never give it back: a command a line, an answer a line, as test_client.
//
//   take MIB   malloc() of so much in a kernel, which then writes there. "ok blank" or "ok used", what its first word was; "ok none": it got nothing
//   litter MIB  take, and then free() of it, with what was written
//   plain      runs a kernel of the same module that takes nothing: "ok"
//   held       whether what the first `take` wrote is still there: "ok" or "ok changed"
//   hold, check  device memory with contents of its own; are they still there: "ok" or "ok changed"
//
// The module is loaded at the first `take` or `plain`.
#include <algorithm>
#include <cstdint>
#include <sstream>
#include <vector>

#include "tests/process/programs/conversation.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {
namespace {

constexpr char kHeapPtx[] = R"ptx(
.version 6.4
.target sm_75
.address_size 64

.extern .func (.param .b64 result) malloc (.param .b64 bytes);
.extern .func free (.param .b64 address);

// out[0]: the address; out[1]: what was there.
.visible .entry take(.param .u64 out, .param .u64 wanted)
{
    .reg .pred %p<2>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [wanted];
    {
    .param .b64 bytes;
    st.param.b64 [bytes], %rd2;
    .param .b64 result;
    call.uni (result), malloc, (bytes);
    ld.param.b64 %rd3, [result];
    }
    st.global.u64 [%rd1], %rd3;
    setp.eq.u64 %p1, %rd3, 0;
    @%p1 bra DONE;
    ld.u64 %rd4, [%rd3];
    st.global.u64 [%rd1+8], %rd4;
    mov.u64 %rd5, 81985529216486895;
    st.u64 [%rd3], %rd5;
DONE:
    ret;
}

.visible .entry drop(.param .u64 out, .param .u64 address)
{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [address];
    {
    .param .b64 released;
    st.param.b64 [released], %rd1;
    call.uni free, (released);
    }
    ret;
}

.visible .entry look(.param .u64 out, .param .u64 address)
{
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [address];
    ld.u64 %rd3, [%rd2];
    st.global.u64 [%rd1], %rd3;
    ret;
}
)ptx";
constexpr std::uint64_t kWritten = 81985529216486895;
constexpr std::uint32_t kOwn = 0x5ca1ab1e;
constexpr std::size_t kOwnWords = 100'000;

class Client {
 public:
  Client() { CU(cuMemAlloc(&out_, sizeof answer_)); }
  std::string answer(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    std::uint64_t mib = 0;
    words >> command >> mib;
    if (command == "hold") return hold();
    if (command == "check") return check();
    load();
    if (command == "take") return take(mib << 20);
    if (command == "litter") return litter(mib << 20);
    if (command == "held") return held();
    if (command == "plain") return run(look_, out_), "ok";
    throw Failure("unknown command: " + line);
  }

 private:
  void load() {
    if (module_ != nullptr) return;
    CU(cuModuleLoadData(&module_, kHeapPtx));
    CU(cuModuleGetFunction(&take_, module_, "take"));
    CU(cuModuleGetFunction(&look_, module_, "look"));
    CU(cuModuleGetFunction(&drop_, module_, "drop"));
  }
  std::string hold() {
    CU(cuMemAlloc(&own_, kOwnWords * sizeof(std::uint32_t)));
    CU(cuMemsetD32(own_, kOwn, kOwnWords));
    return "ok";
  }
  std::string check() {
    std::vector<std::uint32_t> words(kOwnWords);
    CU(cuMemcpyDtoH(words.data(), own_, words.size() * sizeof(std::uint32_t)));
    return std::ranges::all_of(words, [](std::uint32_t word) { return word == kOwn; }) ? "ok" : "ok changed";
  }
  std::string take(std::uint64_t bytes) {
    run(take_, bytes);
    if (answer_[0] == 0) return "ok none";
    if (first_ == 0) first_ = answer_[0];
    return answer_[1] == 0 ? "ok blank" : "ok used";
  }
  std::string litter(std::uint64_t bytes) {
    run(take_, bytes);
    const std::string found = answer_[0] == 0 ? "ok none" : answer_[1] == 0 ? "ok blank" : "ok used";
    if (answer_[0] != 0) run(drop_, answer_[0]);
    return found;
  }
  std::string held() {
    run(look_, first_);
    return answer_[0] == kWritten ? "ok" : "ok changed";
  }
  void run(CUfunction function, std::uint64_t argument) {
    void* parameters[] = {&out_, &argument};
    CU(cuMemsetD8(out_, 0, sizeof answer_));
    CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    CU(cuMemcpyDtoH(answer_, out_, sizeof answer_));
  }

  Device device_;
  CUmodule module_ = nullptr;
  CUfunction take_ = nullptr;
  CUfunction look_ = nullptr;
  CUfunction drop_ = nullptr;
  CUdeviceptr out_ = 0;
  CUdeviceptr own_ = 0;
  std::uint64_t answer_[2] = {};
  std::uint64_t first_ = 0;
};

}  // namespace
}  // namespace mpsshim::test

int main() { return mpsshim::test::converse<mpsshim::test::Client>(); }
