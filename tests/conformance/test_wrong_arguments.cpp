// SPDX-License-Identifier: Apache-2.0
// The error of each call for each argument that is wrong. Every code here is what the real driver answered.
#include <string>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

TEST_CASE("wrong arguments: devices", "[forwarded]") {
  OK(CU(cuInit)(0));
  CUdevice device = 0;
  int value = 0;
  size_t bytes = 0;
  char text[64] = "";
  CHECK(CU(cuDeviceGet)(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceGet)(&device, -1) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(CU(cuDeviceGetCount)(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceGetName)(nullptr, 64, 0) == CUDA_ERROR_INVALID_VALUE);
  if (driver_kind() != DriverKind::real) CHECK(CU(cuDeviceGetName)(text, 0, 0) == CUDA_ERROR_INVALID_VALUE);  // which falls over
  CHECK(CU(cuDeviceGetName)(text, sizeof text, 4711) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(CU(cuDeviceTotalMem)(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceTotalMem)(&bytes, -1) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(CU(cuDeviceGetAttribute)(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 4711) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(CU(cuDriverGetVersion)(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceGetPCIBusId)(text, 12, 0) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuDeviceGetPCIBusId)(text, 13, 0));
  CHECK(CU(cuDeviceGetPCIBusId)(text, sizeof text, 4711) == CUDA_ERROR_INVALID_DEVICE);
  if (!is_cpu_driver()) {
    CHECK(CU(cuDeviceGetByPCIBusId)(&device, "no such bus") == CUDA_ERROR_INVALID_VALUE);
    CHECK(CU(cuDeviceGetByPCIBusId)(&device, "ffff:ff:1f.7") == CUDA_ERROR_INVALID_DEVICE);
  }
  const char* name = nullptr;
  if (driver_kind() != DriverKind::real) CHECK(CU(cuGetErrorName)(CUDA_SUCCESS, nullptr) == CUDA_ERROR_INVALID_VALUE);
  name = "kept?";
  CHECK(CU(cuGetErrorString)(beyond<CUresult>(4711), &name) == CUDA_ERROR_INVALID_VALUE);
  CHECK(name == nullptr);
}

TEST_CASE("wrong arguments: contexts", "[forwarded]") {
  OK(CU(cuInit)(0));
  CUcontext context = nullptr;
  CUcontext popped = nullptr;
  unsigned flags = 0;
  int active = 0;
  size_t value = 0;
  CHECK(CU(cuDevicePrimaryCtxRelease)(0) == CUDA_ERROR_INVALID_CONTEXT);  // never retained
  CHECK(CU(cuDevicePrimaryCtxRetain)(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDevicePrimaryCtxRetain)(&context, 4711) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(CU(cuDevicePrimaryCtxSetFlags)(0, 0xff00) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDevicePrimaryCtxGetState)(4711, &flags, &active) == CUDA_ERROR_INVALID_DEVICE);
  OK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
  CHECK(active == 0);
  CHECK(CU(cuCtxGetCurrent)(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuCtxPopCurrent)(&popped) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(CU(cuCtxPushCurrent)(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuCtxSynchronize)() == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(CU(cuCtxGetLimit)(&value, CU_LIMIT_STACK_SIZE) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(CU(cuCtxGetFlags)(&flags) == CUDA_ERROR_INVALID_CONTEXT);
  CUdevice device = -1;
  CHECK(CU(cuCtxGetDevice)(&device) == CUDA_ERROR_INVALID_CONTEXT);
  OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
  OK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
  CHECK(active == 1);
  OK(CU(cuCtxSetCurrent)(context));
  CHECK(CU(cuCtxGetLimit)(nullptr, CU_LIMIT_STACK_SIZE) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuCtxGetDevice)(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuCtxGetFlags)(nullptr) == CUDA_ERROR_INVALID_VALUE);
  if (!is_cpu_driver()) {                                            // which has its primary context alone
    CHECK(CU(cuCtxDestroy)(context) == CUDA_ERROR_INVALID_CONTEXT);  // a primary context is released
    CHECK(CU(cuCtxDestroy)(nullptr) == CUDA_ERROR_INVALID_VALUE);
  }
  OK(CU(cuCtxPopCurrent)(nullptr));
  OK(CU(cuDevicePrimaryCtxRelease)(0));
  CHECK(CU(cuDevicePrimaryCtxRelease)(0) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("wrong arguments: device memory", "[forwarded]") {
  const DeviceContext context;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  unsigned word = 0;
  CHECK(CU(cuMemAlloc)(nullptr, 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemAlloc)(&address, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemAllocPitch)(&address, &bytes, 100, 10, 3) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemAllocPitch)(&address, &bytes, 0, 10, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemFree)(0x1000) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemAlloc)(&address, 4096));
  CHECK(CU(cuMemFree)(address + 256) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemcpyHtoD)(0x1000, &word, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemcpyDtoH)(&word, 0x1000, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemcpyDtoD)(address, 0x1000, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemcpyHtoD)(address, nullptr, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemcpyDtoH)(nullptr, address, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemcpyHtoD)(0, &word, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemcpyHtoDAsync)(0x1000, &word, 4, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemcpyHtoD)(address, &word, 0) == CUDA_SUCCESS);
  CHECK(CU(cuMemcpyHtoD)(0x1000, &word, 0) == CUDA_SUCCESS);
  CHECK(CU(cuMemsetD8)(0x1000, 0, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemsetD8)(0x1000, 0, 0) == CUDA_SUCCESS);
  CHECK(CU(cuMemsetD32)(address + 2, 0, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemsetD16)(address + 1, 0, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemsetD32Async)(address + 2, 0, 4, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemsetD2D32)(address, 6, 0, 1, 2) == CUDA_ERROR_INVALID_VALUE);  // pitch no multiple of the element
  CUdeviceptr base = 0;
  CHECK(CU(cuMemGetAddressRange)(&base, &bytes, 0x1000) == CUDA_ERROR_NOT_FOUND);
  OK(CU(cuMemGetAddressRange)(nullptr, &bytes, address));
  CHECK(bytes == 4096);
  OK(CU(cuMemFree)(address));
  CHECK(CU(cuMemcpyDtoH)(&word, address, 4) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("wrong arguments: pointers", "[forwarded]") {
  const DeviceContext context;
  unsigned type = 0;
  int plain = 0;
  const auto host = reinterpret_cast<CUdeviceptr>(&plain);
  CHECK(CU(cuPointerGetAttribute)(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0x1000) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuPointerGetAttribute)(&type, beyond<CUpointer_attribute>(4711), host) == CUDA_ERROR_INVALID_VALUE);
  type = 77;
  CUcontext owner = context.handle();
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT};
  void* answers[] = {&type, &owner};
  OK(CU(cuPointerGetAttributes)(2, which, answers, host));  // zeroes for memory that CUDA does not know
  CHECK(type == 0);
  CHECK(owner == nullptr);
}

TEST_CASE("wrong arguments: streams and events", "[forwarded]") {
  const DeviceContext context;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  float ms = 0;
  CHECK(CU(cuStreamCreate)(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuStreamCreate)(&stream, 0x80) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuStreamCreateWithPriority)(&stream, 0, 4711));  // brought into the range
  int priority = 4711;
  OK(CU(cuStreamGetPriority)(stream, &priority));
  CHECK(priority == 0);
  CHECK(CU(cuStreamGetPriority)(stream, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuStreamGetFlags)(stream, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuEventCreate)(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuEventCreate)(&event, 0x80) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuEventCreate)(&event, CU_EVENT_INTERPROCESS) == CUDA_ERROR_INVALID_VALUE);  // needs DISABLE_TIMING
  OK(CU(cuEventCreate)(&event, 0));
  CHECK(CU(cuEventRecord)(nullptr, stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuEventQuery)(nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuEventSynchronize)(nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuEventDestroy)(nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuStreamWaitEvent)(stream, nullptr, 0) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuStreamWaitEvent)(stream, event, 0x80) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuStreamWaitEvent)(stream, event, 0));                                        // never recorded
  CHECK(CU(cuEventElapsedTime)(nullptr, event, event) == CUDA_ERROR_INVALID_HANDLE);  // never recorded
  CHECK(CU(cuEventElapsedTime)(&ms, event, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  OK(CU(cuEventRecord)(event, stream));
  OK(CU(cuEventSynchronize)(event));
  OK(CU(cuEventElapsedTime)(&ms, event, event));
  CHECK(ms == 0);
  CHECK(CU(cuEventElapsedTime)(nullptr, event, event) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuStreamDestroy)(nullptr) == CUDA_ERROR_INVALID_HANDLE);
  OK(CU(cuEventDestroy)(event));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("wrong arguments: modules", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  const std::string content = read_image("kernels.fatbin");
  CHECK(CU(cuModuleLoadData)(nullptr, content.data()) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuModuleLoadData)(&module, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuModuleLoad)(&module, "/no/such/file") == CUDA_ERROR_FILE_NOT_FOUND);
  CHECK(CU(cuModuleLoad)(&module, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuModuleGetFunction)(nullptr, image.handle(), "store") == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuModuleGetFunction)(&function, image.handle(), nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuModuleGetFunction)(&function, image.handle(), "") == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuModuleGetFunction)(&function, nullptr, "store") == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuModuleGetGlobal)(&address, &bytes, image.handle(), nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuModuleGetGlobal)(nullptr, nullptr, image.handle(), "counter") == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuModuleGetGlobal)(&address, &bytes, image.handle(), "store") == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuModuleGetFunction)(&function, image.handle(), "counter") == CUDA_ERROR_NOT_FOUND);
  CHECK(CU(cuModuleUnload)(nullptr) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("wrong arguments: images", "[forwarded]") {
  const DeviceContext context;
  CUmodule module = nullptr;
  CHECK(CU(cuModuleLoadData)(&module, "neither this nor that") == CUDA_ERROR_INVALID_IMAGE);
  CHECK(CU(cuModuleLoadData)(&module, "") == CUDA_ERROR_INVALID_IMAGE);
  CHECK(CU(cuModuleLoadData)(&module, ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k() { nonsense }\n") == CUDA_ERROR_INVALID_PTX);
  CHECK(CU(cuModuleLoadData)(&module, ".version 99.0\n.target sm_75\n.address_size 64\n") == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
}

TEST_CASE("wrong arguments: libraries", "[forwarded]") {
  const DeviceContext context;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  const std::string content = read_image("kernels.fatbin");
  CHECK(CU(cuLibraryLoadData)(nullptr, content.data(), nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuLibraryLoadData)(&library, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuLibraryLoadFromFile)(&library, "/no/such/file", nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_ERROR_FILE_NOT_FOUND);
  OK(CU(cuLibraryLoadData)(&library, content.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CHECK(CU(cuLibraryGetKernel)(&kernel, library, "no_such_kernel") == CUDA_ERROR_NOT_FOUND);
  CHECK(CU(cuLibraryGetKernel)(&kernel, library, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuLibraryGetKernel)(nullptr, library, "store") == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuLibraryGetKernel)(&kernel, nullptr, "store") == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuLibraryGetGlobal)(&address, &bytes, library, "no_such_variable") == CUDA_ERROR_NOT_FOUND);
  unsigned count = 0;
  OK(CU(cuLibraryGetKernelCount)(&count, library));
  CHECK(count == 23);
  OK(CU(cuLibraryUnload)(library));
  CHECK(CU(cuLibraryUnload)(nullptr) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("wrong arguments: functions and launches", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const DeviceArray<unsigned> out(1);
  const CUfunction store = image.function("store");
  int value = 0;
  CHECK(CU(cuFuncGetAttribute)(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, store) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuFuncGetAttribute)(&value, beyond<CUfunction_attribute>(4711), store) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuFuncGetAttribute)(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuFuncSetAttribute)(store, CU_FUNC_ATTRIBUTE_NUM_REGS, 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuFuncSetAttribute)(store, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, -1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuFuncSetAttribute)(store, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 101) == CUDA_ERROR_INVALID_VALUE);
  size_t offset = 0;
  CHECK(CU(cuFuncGetParamInfo)(store, 0, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuFuncGetParamInfo)(store, 0, &offset, nullptr));
  CHECK(CU(cuFuncGetName)(nullptr, store) == CUDA_ERROR_INVALID_VALUE);
  CHECK(launch(nullptr, nullptr, 1, 1, out.address(), 1u) == CUDA_ERROR_INVALID_HANDLE);
  CUdeviceptr address = out.address();
  unsigned stored = 1;
  void* arguments[] = {&address, &stored};
  const auto shaped = [&](unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared) {
    return CU(cuLaunchKernel)(store, gx, gy, gz, bx, by, bz, shared, nullptr, arguments, nullptr);
  };
  CHECK(shaped(1, 0, 1, 1, 1, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(shaped(1, 65536, 1, 1, 1, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(shaped(0x80000000u, 1, 1, 1, 1, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(shaped(1, 1, 1, 1, 1, 65, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(shaped(1, 1, 1, 1, 1, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(shaped(1, 1, 1, 32, 32, 2, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(shaped(1, 1, 1, 1, 1, 1, 48 * 1024 + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuLaunchKernelEx)(nullptr, store, arguments, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CUlaunchConfig config{1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, 1};
  CHECK(CU(cuLaunchKernelEx)(&config, store, arguments, nullptr) == CUDA_ERROR_INVALID_VALUE);  // attributes that are nowhere
  OK(shaped(1, 1, 1, 1, 1, 1, 48 * 1024));
  OK(CU(cuCtxSynchronize)());
}

TEST_CASE("wrong arguments: occupancy", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction store = image.function("store");
  int blocks = 0;
  int threads = 0;
  CHECK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(nullptr, store, 32, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, store, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, nullptr, 32, 0) == CUDA_ERROR_INVALID_HANDLE);
  OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, store, 2048, 0));
  CHECK(blocks == 0);
  OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, store, 32, size_t{1} << 30));
  CHECK(blocks == 0);
  OK(CU(cuOccupancyMaxPotentialBlockSize)(&blocks, &threads, store, nullptr, 0, 0));
  CHECK(threads == 1024);
  CHECK(CU(cuOccupancyMaxPotentialBlockSize)(nullptr, &threads, store, nullptr, 0, 0) == CUDA_ERROR_INVALID_VALUE);
}
