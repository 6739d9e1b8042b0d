// SPDX-License-Identifier: Apache-2.0
// cuLink*: results, logs, and what is refused. (What is linked and runs: test_images.cpp.)
#include <cstring>
#include <string>

#include "loaded_image.hpp"

using namespace mpsshim::test;

namespace {

// A linker whose logs are seen.
struct Linker {
  char error_log[4096] = "";
  char info_log[4096] = "";
  CUjit_option options[5] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                             CU_JIT_OPTIMIZATION_LEVEL};
  void* values[5] = {error_log, reinterpret_cast<void*>(sizeof error_log), info_log, reinterpret_cast<void*>(sizeof info_log),
                     reinterpret_cast<void*>(3)};
  CUlinkState state = nullptr;

  Linker() { OK(CU(cuLinkCreate)(5, options, values, &state)); }
  ~Linker() {
    if (state != nullptr) CU(cuLinkDestroy)(state);
  }
  CUresult add(CUjitInputType type, std::string content) {
    return CU(cuLinkAddData)(state, type, content.data(), content.size(), "input", 0, nullptr, nullptr);
  }
};

}  // namespace

TEST_CASE("the linker takes files", "[forwarded]") {
  const DeviceContext context;
  Linker linker;
  OK(CU(cuLinkAddFile)(linker.state, CU_JIT_INPUT_PTX, MPSSHIM_TEST_IMAGES "/kernels.ptx", 0, nullptr, nullptr));
  CHECK(CU(cuLinkAddFile)(linker.state, CU_JIT_INPUT_PTX, "/no/such/file.ptx", 0, nullptr, nullptr) == CUDA_ERROR_FILE_NOT_FOUND);
  void* cubin = nullptr;
  size_t size = 0;
  OK(CU(cuLinkComplete)(linker.state, &cubin, &size));
  CHECK(size > 1000);
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, cubin));
  CUfunction store = nullptr;
  OK(CU(cuModuleGetFunction)(&store, module, "store"));
  const DeviceArray<unsigned> out(1);
  OK(launch(store, nullptr, 1, 1, out.address(), 12u));
  CHECK(out[0] == 12);
  OK(CU(cuModuleUnload)(module));
}

TEST_CASE("the linker says what is wrong with its input", "[forwarded]") {
  const DeviceContext context;
  Linker linker;
  const std::string ptx = read_image("kernels.ptx");
  const std::string bad = ptx.substr(0, ptx.find(".visible .entry")) + "\n.visible .entry k() { frobnicate.u32 %r1; ret; }\n";
  CUresult result = linker.add(CU_JIT_INPUT_PTX, bad + '\0');
  void* cubin = nullptr;
  size_t size = 0;
  if (result == CUDA_SUCCESS) result = CU(cuLinkComplete)(linker.state, &cubin, &size);
  CHECK(result == CUDA_ERROR_INVALID_PTX);
  CHECK(std::string(linker.error_log).find("frobnicate") != std::string::npos);
}

TEST_CASE("linkers that are none", "[forwarded]") {
  const DeviceContext context;
  CHECK(CU(cuLinkCreate)(0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CUlinkState state = nullptr;
  CHECK(CU(cuLinkCreate)(1, nullptr, nullptr, &state) == CUDA_ERROR_INVALID_VALUE);
  Linker linker;
  CHECK(CU(cuLinkAddData)(linker.state, CU_JIT_INPUT_PTX, nullptr, 10, "", 0, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuLinkComplete)(linker.state, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuLinkDestroy)(linker.state));
  state = std::exchange(linker.state, nullptr);
  if (!refuses_dead_handles()) return;
  void* cubin = nullptr;
  size_t size = 0;
  CHECK(CU(cuLinkComplete)(state, &cubin, &size) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuLinkDestroy)(state) == CUDA_ERROR_INVALID_HANDLE);
}
