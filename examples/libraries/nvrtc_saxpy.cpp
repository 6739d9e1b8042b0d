// SPDX-License-Identifier: Apache-2.0
// NVRTC: one source compiled to PTX and to a cubin, and two sources linked by cuLink; loaded and run by the driver API.
#include <cuda.h>
#include <nvrtc.h>

#include <string>

#include "report.hpp"

namespace {

const char kSaxpy[] = R"(
extern "C" __device__ float scaled(float a, float x);
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = scaled(a, x[i]) + y[i];
})";
const char kScaled[] = R"(extern "C" __device__ float scaled(float a, float x) { return a * x; })";

// What NVRTC makes of `source`: PTX, or machine code where `architecture` begins with "sm_".
std::vector<char> compile(const std::string& source, const std::string& architecture) {
  nvrtcProgram program = nullptr;
  CHECKED(nvrtcCreateProgram(&program, source.c_str(), "saxpy.cu", 0, nullptr, nullptr));
  const std::string option = "--gpu-architecture=" + architecture;
  const char* options[] = {option.c_str(), "--relocatable-device-code=true"};
  CHECKED(nvrtcCompileProgram(program, 2, options));
  const bool machine_code = architecture.rfind("sm_", 0) == 0;
  std::size_t bytes = 0;
  CHECKED(machine_code ? nvrtcGetCUBINSize(program, &bytes) : nvrtcGetPTXSize(program, &bytes));
  std::vector<char> image(bytes);
  CHECKED(machine_code ? nvrtcGetCUBIN(program, image.data()) : nvrtcGetPTX(program, image.data()));
  CHECKED(nvrtcDestroyProgram(&program));
  return image;
}

void run(const char* name, const void* image) {
  constexpr int n = 100000;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CHECKED(cuModuleLoadData(&module, image));
  CHECKED(cuModuleGetFunction(&function, module, "saxpy"));
  const std::vector<float> x = numbers<float>(n, 1), y = numbers<float>(n, 2);
  const DeviceVector<float> dx(x), dy(y);
  float a = 2.5F;
  float *x_pointer = dx.data(), *y_pointer = dy.data();
  int count = n;
  void* arguments[] = {&a, &x_pointer, &y_pointer, &count};
  CHECKED(cuLaunchKernel(function, (n + 255) / 256, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr));
  CHECKED(cuCtxSynchronize());
  std::vector<double> want;
  for (int i = 0; i < n; ++i) want.push_back(2.5 * x[i] + y[i]);
  near(name, dy.host(), want, 1e-6);
  result(name, dy.host());
  CHECKED(cuModuleUnload(module));
}

}  // namespace

int main() {
  CHECKED(cudaFree(nullptr));  // the primary context, current
  int major = 0, minor = 0;
  CHECKED(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  CHECKED(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
  const std::string number = std::to_string(major * 10 + minor);
  const std::string whole = std::string(kScaled) + kSaxpy;
  run("compiled to PTX", compile(whole, "compute_" + number).data());
  run("compiled to machine code", compile(whole, "sm_" + number).data());

  for (const bool machine_code : {false, true}) {
    const CUjitInputType type = machine_code ? CU_JIT_INPUT_CUBIN : CU_JIT_INPUT_PTX;
    const std::string architecture = (machine_code ? "sm_" : "compute_") + number;
    std::vector<char> first = compile(kSaxpy, architecture), second = compile(kScaled, architecture);
    CUlinkState link = nullptr;
    CHECKED(cuLinkCreate(0, nullptr, nullptr, &link));
    CHECKED(cuLinkAddData(link, type, first.data(), first.size(), "saxpy", 0, nullptr, nullptr));
    CHECKED(cuLinkAddData(link, type, second.data(), second.size(), "scaled", 0, nullptr, nullptr));
    void* image = nullptr;
    std::size_t bytes = 0;
    CHECKED(cuLinkComplete(link, &image, &bytes));
    run(machine_code ? "linked from machine code" : "linked from PTX", image);
    CHECKED(cuLinkDestroy(link));
  }
}
