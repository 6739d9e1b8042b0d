// SPDX-License-Identifier: Apache-2.0
// Images of every kind, loaded and linked, and what lies in them.
#include <string>

#include "loaded_image.hpp"

using namespace mpsshim::test;

TEST_CASE("variables of a module: initial values, and writing them", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  CUdeviceptr counter = 0;
  size_t bytes = 0;
  OK(CU(cuModuleGetGlobal)(&counter, &bytes, image.handle(), "counter"));
  CHECK(bytes == 4);
  DeviceArray<int> out(2);
  OK(launch(image.function("read_variables"), nullptr, 1, 1, out.address()));
  CHECK(out[0] == 5);
  CHECK(out[1] == 10);
  OK(CU(cuMemsetD32)(counter, 77, 1));
  OK(launch(image.function("read_variables"), nullptr, 1, 1, out.address()));
  CHECK(out[0] == 77);
  CHECK(CU(cuModuleGetGlobal)(&counter, &bytes, image.handle(), "no_such_variable") == CUDA_ERROR_NOT_FOUND);
}

TEST_CASE("every load has variables of its own", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage first;
  const LoadedImage second;
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  OK(CU(cuModuleGetGlobal)(&a, nullptr, first.handle(), "counter"));
  OK(CU(cuModuleGetGlobal)(&b, nullptr, second.handle(), "counter"));
  CHECK(a != b);
}

TEST_CASE("libraries and their kernels", "[forwarded]") {
  const DeviceContext context;
  const std::string image = read_image("kernels.fatbin");
  CUlibrary library = nullptr;
  OK(CU(cuLibraryLoadData)(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  OK(CU(cuLibraryGetKernel)(&kernel, library, "store"));
  DeviceArray<unsigned> out(1);
  OK(launch(reinterpret_cast<CUfunction>(kernel), nullptr, 1, 1, out.address(), 8u));
  CHECK(out[0] == 8);
  CUfunction function = nullptr;
  OK(CU(cuKernelGetFunction)(&function, kernel));
  OK(launch(function, nullptr, 1, 1, out.address(), 9u));
  CHECK(out[0] == 9);
  size_t offset = 0;
  size_t size = 0;
  OK(CU(cuKernelGetParamInfo)(kernel, 1, &offset, &size));
  CHECK(offset == 8);
  OK(CU(cuLibraryUnload)(library));
  if (refuses_dead_handles()) CHECK(CU(cuLibraryGetKernel)(&kernel, library, "store") == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("PTX text loads, and says where it is wrong", "[forwarded]") {
  const DeviceContext context;
  const std::string ptx = read_image("kernels.ptx");
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, ptx.c_str()));
  CUfunction store = nullptr;
  OK(CU(cuModuleGetFunction)(&store, module, "store"));
  DeviceArray<unsigned> out(1);
  OK(launch(store, nullptr, 1, 1, out.address(), 4u));
  CHECK(out[0] == 4);
  OK(CU(cuModuleUnload)(module));

  const std::string bad = ptx.substr(0, ptx.find(".visible .entry")) + "\n.visible .entry k() { frobnicate.u32 %r1; ret; }\n";
  char log[512] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CHECK(CU(cuModuleLoadDataEx)(&module, bad.c_str(), 2, options, values) == CUDA_ERROR_INVALID_PTX);
  CHECK(std::string(log).find("frobnicate") != std::string::npos);
}

// What CUDA 4 compiled for its oldest devices: modules are still made of it. Linkers compile to objects, which such texts are too old for.
TEST_CASE("PTX of the first versions loads, and no linker takes it", "[forwarded]") {
  const DeviceContext context;
  std::string ptx =
      ".version 1.4\n.target sm_10, map_f64_to_f32\n"
      ".entry add_one (.param .u64 out, .param .u32 value) {\n"
      ".reg .u32 %r<3>; .reg .u64 %rd<2>;\n"
      "ld.param.u64 %rd1, [out];\nld.param.u32 %r1, [value];\nadd.u32 %r2, %r1, 1;\nst.global.u32 [%rd1+0], %r2;\nexit; }\n";
  char log[4096] = "";
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER, CU_JIT_MAX_REGISTERS};
  void* values[] = {reinterpret_cast<void*>(sizeof log), log, reinterpret_cast<void*>(32)};
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadDataEx)(&module, ptx.c_str(), 3, options, values));
  CUfunction add_one = nullptr;
  OK(CU(cuModuleGetFunction)(&add_one, module, "add_one"));
  DeviceArray<unsigned> out(1);
  OK(launch(add_one, nullptr, 1, 1, out.address(), 41u));
  CHECK(out[0] == 42);
  OK(CU(cuModuleUnload)(module));

  CUjit_option error_options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* error_values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CUlinkState state = nullptr;
  OK(CU(cuLinkCreate)(2, error_options, error_values, &state));
  CUresult result = CU(cuLinkAddData)(state, CU_JIT_INPUT_PTX, ptx.data(), ptx.size() + 1, "old", 0, nullptr, nullptr);
  void* cubin = nullptr;
  size_t size = 0;
  if (result == CUDA_SUCCESS) result = CU(cuLinkComplete)(state, &cubin, &size);
  CHECK(result == CUDA_ERROR_INVALID_PTX);
  CHECK(std::string(log).find("3.1 or later") != std::string::npos);
  OK(CU(cuLinkDestroy)(state));
}

TEST_CASE("PTX text is linked to an image that loads", "[forwarded]") {
  const DeviceContext context;
  std::string ptx = read_image("kernels.ptx");
  CUlinkState state = nullptr;
  OK(CU(cuLinkCreate)(0, nullptr, nullptr, &state));
  OK(CU(cuLinkAddData)(state, CU_JIT_INPUT_PTX, ptx.data(), ptx.size() + 1, "kernels", 0, nullptr, nullptr));
  void* cubin = nullptr;
  size_t size = 0;
  OK(CU(cuLinkComplete)(state, &cubin, &size));
  const std::string copy(static_cast<const char*>(cubin), size);
  OK(CU(cuLinkDestroy)(state));
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, copy.data()));
  CUfunction store = nullptr;
  OK(CU(cuModuleGetFunction)(&store, module, "store"));
  DeviceArray<unsigned> out(1);
  OK(launch(store, nullptr, 1, 1, out.address(), 4u));
  CHECK(out[0] == 4);
  OK(CU(cuModuleUnload)(module));
}

TEST_CASE("objects of -rdc are linked, by their wrapper and by the linker", "[forwarded]") {
  const DeviceContext context;
  std::string separate = read_image("separate.fatbin");
  std::string linked = read_image("linked.fatbin");
  CUmodule module = nullptr;
  // A GPU wants the linked machine code in the wrapper.
  if (is_cpu_driver()) {
    SECTION("by their wrapper") {
      const void* const others[] = {separate.data(), linked.data(), nullptr};
      const std::string machine_code = read_image("cubin_only.fatbin");
      const struct {
        unsigned magic = 0x466243b1;
        unsigned version = 2;
        const void* data;
        const void* others;
      } wrapper{.data = machine_code.data(), .others = others};
      CUlibrary library = nullptr;
      OK(CU(cuLibraryLoadData)(&library, &wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0));
      OK(CU(cuLibraryGetModule)(&module, library));
    }
  }
  SECTION("by the linker") {
    CUlinkState state = nullptr;
    OK(CU(cuLinkCreate)(0, nullptr, nullptr, &state));
    for (std::string* object : {&separate, &linked}) {
      OK(CU(cuLinkAddData)(state, CU_JIT_INPUT_FATBINARY, object->data(), object->size(), "", 0, nullptr, nullptr));
    }
    void* cubin = nullptr;
    size_t size = 0;
    OK(CU(cuLinkComplete)(state, &cubin, &size));
    OK(CU(cuModuleLoadData)(&module, cubin));
    OK(CU(cuLinkDestroy)(state));
  }
  CUfunction function = nullptr;
  OK(CU(cuModuleGetFunction)(&function, module, "calls_the_other"));
  DeviceArray<int> out(1);
  OK(launch(function, nullptr, 1, 1, out.address(), 7));
  CHECK(out[0] == 121);
  OK(CU(cuModuleUnload)(module));
}

TEST_CASE("an image without PTX is refused for what it is") {
  if (!is_cpu_driver()) MPSSHIM_SKIP("a GPU may run it");
  const DeviceContext context;
  const std::string image = read_image("cubin_only.fatbin");
  CUmodule module = nullptr;
  char log[512] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CHECK(CU(cuModuleLoadDataEx)(&module, image.data(), 2, options, values) == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(std::string(log).find("-gencode arch=compute_80,code=compute_80") != std::string::npos);
  CHECK(CU(cuModuleLoadData)(&module, "neither this nor that") == CUDA_ERROR_INVALID_IMAGE);
}
