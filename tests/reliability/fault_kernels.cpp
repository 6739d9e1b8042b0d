// SPDX-License-Identifier: Apache-2.0
#include "tests/reliability/fault_kernels.hpp"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/conformance/broken_code.hpp"

namespace mpsshim::test {

namespace {

constexpr CUdeviceptr kNowhere = 0x700000000000;

constexpr char kHeapPtx[] = R"ptx(
.version 6.4
.target sm_75
.address_size 64

.extern .func (.param .b64 result) malloc (.param .b64 bytes);

.visible .entry allocate(.param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u64 %rd2, 4;
    {
    .param .b64 bytes;
    st.param.b64 [bytes], %rd2;
    .param .b64 result;
    call.uni (result), malloc, (bytes);
    ld.param.b64 %rd3, [result];
    }
    mov.u32 %r1, 42;
    st.u32 [%rd3], %r1;
    st.global.u64 [%rd1], %rd3;
    ret;
}

.visible .entry read_back(.param .u64 in, .param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [in];
    ld.param.u64 %rd2, [out];
    ld.global.u64 %rd3, [%rd1];
    ld.u32 %r1, [%rd3];
    st.global.u32 [%rd2], %r1;
    ret;
}
)ptx";

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), "cannot read " + path + "; build the target conformance_images");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

template <class... Arguments>
CUresult launch_and_wait(CUfunction function, unsigned threads, Arguments... arguments) {
  void* pointers[] = {&arguments..., nullptr};
  CU(cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, nullptr, pointers, nullptr));
  // The first wait may be over just before the driver tells of the fault (docs/reliability.md); then a later one has the error.
  CUresult result = cuCtxSynchronize();
  for (int i = 0; i < 1000 && result == CUDA_SUCCESS; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    result = cuCtxSynchronize();
  }
  return result;
}

}  // namespace

CUmodule load_kernels() {
  CUmodule module = nullptr;
  CU(cuModuleLoadData(&module, read_file(MPSSHIM_TEST_IMAGES "/kernels.fatbin").data()));
  return module;
}

CUmodule load_heap_kernels() {
  CUmodule module = nullptr;
  CU(cuModuleLoadData(&module, kHeapPtx));
  return module;
}

FaultKernels::FaultKernels() : image_(read_file(MPSSHIM_TEST_IMAGES "/kernels.fatbin")) {
  CU(cuModuleLoadData(&module_, image_.data()));
  CU(cuMemAlloc(&memory_, 4096));
  const std::string machine_code = MPSSHIM_TEST_IMAGES "/machine_code.cubin";
  if (!std::filesystem::exists(machine_code)) return;
  std::string cubin = read_file(machine_code);
  require(break_code(cubin, "trap"), machine_code + " has no kernel trap");
  if (cuModuleLoadData(&broken_, cubin.data()) != CUDA_SUCCESS) broken_ = nullptr;  // for another GPU, or the CPU driver
}

CUfunction FaultKernels::function(const char* name) const {
  CUfunction found = nullptr;
  CU(cuModuleGetFunction(&found, module_, name));
  return found;
}

CUresult FaultKernels::fault(const std::string& kind) const {
  if (kind == "illegal_address") return launch_and_wait(function("write_through"), 1, kNowhere);
  if (kind == "misaligned") return launch_and_wait(function("misalign"), 1, memory_);
  if (kind == "trap") return launch_and_wait(function("trap"), 1);
  if (kind == "assertion") return launch_and_wait(function("assert_false"), 1, 0);
  if (kind == "stack_overflow") return launch_and_wait(function("recurse"), 1, 1'000'000u, memory_);
  if (kind == "illegal_instruction") {
    if (broken_ == nullptr) return launch_and_wait(function("odd_barrier"), 64, 33);  // the CPU driver's, which runs no machine code
    CUfunction broken = nullptr;
    CU(cuModuleGetFunction(&broken, broken_, "trap"));
    return launch_and_wait(broken, 1);
  }
  throw Failure("no fault is called " + kind);
}

}  // namespace mpsshim::test
