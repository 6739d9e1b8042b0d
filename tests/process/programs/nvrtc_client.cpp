// SPDX-License-Identifier: Apache-2.0
// Compiles a kernel with nvrtc and prints what it got; PTX is run.
//
// usage: nvrtc_client NAME OPTION...
// NAME is the kernel's, so that each name is a source of its own; `mistaken` is one that is wrong. Output: a line each for PTX and machine code
// with its size and a digest of its bytes; "result right" where there is PTX alone, which was run; or "refused".
// Exit status 1: something failed that should not, told on standard error.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <nvrtc.h>

#include "tests/process/programs/driver.hpp"

using namespace mpsshim::test;

namespace {

constexpr unsigned kCount = 64;

const char kBody[] = R"((float* values, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = values[i] / 3.0f + sqrtf(values[i]);
})";

void require_nvrtc(nvrtcResult result, const char* call) {
  if (result != NVRTC_SUCCESS) throw Failure(std::string(call) + ": " + nvrtcGetErrorString(result));
}
#define NVRTC(call) require_nvrtc((call), #call)

void print_image(const char* what, const std::vector<char>& bytes) {
  std::uint64_t digest = 0xcbf29ce484222325;
  for (const char byte : bytes) digest = (digest ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  std::printf("%s of %zu bytes, %016llx\n", what, bytes.size(), static_cast<unsigned long long>(digest));
}

void run(const std::vector<char>& ptx, const std::string& name) {
  const Device device;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CU(cuModuleLoadData(&module, ptx.data()));
  CU(cuModuleGetFunction(&function, module, name.c_str()));
  std::vector<float> values(kCount);
  for (unsigned i = 0; i < kCount; ++i) values[i] = static_cast<float>(i) * 1.25f;
  CUdeviceptr data = 0;
  CU(cuMemAlloc(&data, kCount * sizeof(float)));
  CU(cuMemcpyHtoD(data, values.data(), kCount * sizeof(float)));
  unsigned count = kCount;
  void* arguments[] = {&data, &count};
  CU(cuLaunchKernel(function, 2, 1, 1, kCount / 2, 1, 1, 0, nullptr, arguments, nullptr));
  std::vector<float> found(kCount);
  CU(cuMemcpyDtoH(found.data(), data, kCount * sizeof(float)));
  for (unsigned i = 0; i < kCount; ++i) {
    const float wanted = values[i] / 3.0f + std::sqrt(values[i]);
    require(std::abs(found[i] - wanted) <= 1e-5f * wanted, "value " + std::to_string(i) + " is wrong");
  }
  std::puts("result right");
}

void compile_and_run(const std::string& name, const std::vector<const char*>& options) {
  const std::string source = "extern \"C\" __global__ void " + name + (name == "mistaken" ? "(no_such_type* values) {}" : kBody);
  nvrtcProgram program = nullptr;
  NVRTC(nvrtcCreateProgram(&program, source.c_str(), "kernel.cu", 0, nullptr, nullptr));
  const nvrtcResult compiled = nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
  if (compiled == NVRTC_ERROR_COMPILATION) {
    std::puts("refused");
    return;
  }
  require_nvrtc(compiled, "nvrtcCompileProgram");
  std::size_t ptx_bytes = 0;
  std::size_t code_bytes = 0;
  NVRTC(nvrtcGetPTXSize(program, &ptx_bytes));
  NVRTC(nvrtcGetCUBINSize(program, &code_bytes));
  std::vector<char> ptx(ptx_bytes);
  std::vector<char> code(code_bytes);
  NVRTC(nvrtcGetPTX(program, ptx.data()));
  print_image("PTX", ptx);
  if (!code.empty()) {
    NVRTC(nvrtcGetCUBIN(program, code.data()));
    print_image("machine code", code);
  }
  NVRTC(nvrtcDestroyProgram(&program));
  if (code.empty()) run(ptx, name);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw Failure("usage: nvrtc_client NAME OPTION...");
    compile_and_run(argv[1], std::vector<const char*>(argv + 2, argv + argc));
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
