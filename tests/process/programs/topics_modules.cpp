// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "tests/process/programs/topics.hpp"

namespace mpsshim::test {

void modules_and_globals(const Device& device) {
  CUmodule module = nullptr;
  CUfunction count = nullptr, none = nullptr;
  CU(cuModuleLoadData(&module, kGlobalPtx));
  CU(cuModuleGetFunction(&count, module, "count"));
  CU_GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&none, module, "no_such_kernel"));
  CU_GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&none, device.module, "count"));
  CUdeviceptr counter = 0;
  std::size_t size = 0;
  CU(cuModuleGetGlobal(&counter, &size, module, "counter"));
  require(size == 4, "the variable has " + std::to_string(size) + " bytes");
  CU_GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(nullptr, &size, module, "no_such_variable"));
  unsigned value = 0;
  CU(cuMemcpyDtoH(&value, counter, 4));
  require(value == 5, "the variable begins as " + std::to_string(value));
  value = 40;
  CU(cuMemcpyHtoD(counter, &value, 4));
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(counter, &value, 5));
  CUdeviceptr out = 0;
  CU(cuMemAlloc(&out, 4));
  void* arguments[] = {&out};
  for (int i = 0; i < 2; ++i) CU(cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
  CU(cuMemcpyDtoH(&value, out, 4));
  require(value == 42, "the kernel counted to " + std::to_string(value));
  // Loaded again it is another module, with a variable of its own.
  CUmodule second = nullptr;
  CU(cuModuleLoadData(&second, kGlobalPtx));
  CUdeviceptr second_counter = 0;
  CU(cuModuleGetGlobal(&second_counter, nullptr, second, "counter"));
  CU(cuMemcpyDtoH(&value, second_counter, 4));
  require(second_counter != counter && value == 5, "a second load shares the first one's variable");
  CU(cuModuleUnload(module));
  CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(module));
  CU(cuModuleUnload(second));
}

void refused_launches(const Device& device) {
  Words words(100, 8);
  CUdeviceptr data = words.address;
  unsigned count = 100, value = 1;
  void* arguments[] = {&data, &count, &value};
  const auto launch = [&](CUfunction function, unsigned blocks, unsigned threads, unsigned shared_bytes, CUstream stream) {
    return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, arguments, nullptr);
  };
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, launch(device.add, 1, 2048, 0, nullptr));
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, launch(device.add, 0, 1, 0, nullptr));
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, launch(device.add, 1, 1, 1 << 20, nullptr));
  CU_GIVES(CUDA_ERROR_INVALID_HANDLE, launch(reinterpret_cast<CUfunction>(0x1234), 1, 1, 0, nullptr));
  CU_GIVES(CUDA_ERROR_INVALID_HANDLE, launch(nullptr, 1, 1, 0, nullptr));
  words.check();
  CU(launch(device.add, 1, 128, 0, nullptr));
  words.add(1);
  words.check();
}

void contexts(const Device& device) {
  CUcontext current = nullptr;
  CU(cuCtxGetCurrent(&current));
  require(current == device.context, "another context is current");
  CUcontext popped = nullptr;
  CU(cuCtxPopCurrent(&popped));
  CUdeviceptr memory = 0;
  CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&memory, 4));
  CU(cuCtxPushCurrent(popped));
  CU(cuMemAlloc(&memory, 4));
  // A thread begins with none.
  CUresult on_thread = CUDA_SUCCESS;
  std::thread([&] { on_thread = cuCtxSynchronize(); }).join();
  CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, on_thread);
  CUcontext created = nullptr;
#if CUDA_VERSION >= 13000
  CU(cuCtxCreate(&created, nullptr, 0, 0));
#else
  CU(cuCtxCreate(&created, 0, 0));
#endif
  CU(cuMemAlloc(&memory, 1000));
  CU(cuMemsetD8(memory, 1, 1000));
  CU(cuCtxSynchronize());
  CU(cuCtxDestroy(created));
  CU(cuCtxGetCurrent(&current));
  require(current == device.context, "after cuCtxDestroy the context below is not current");
}

}  // namespace mpsshim::test
