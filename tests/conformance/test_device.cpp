// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "driver_under_test.hpp"

using namespace mpsshim::test;

TEST_CASE("calls before cuInit are refused", "[forwarded]") {
  int count = 0;
  CUcontext context = nullptr;
  // Only true in a process that has not called cuInit: CTest runs each case in its own.
  if (CU(cuDeviceGetCount)(&count) == CUDA_SUCCESS) MPSSHIM_SKIP("the driver is initialised already");
  CHECK(CU(cuDeviceGetCount)(&count) == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(CU(cuCtxGetCurrent)(&context) == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(CU(cuInit)(1) == CUDA_ERROR_INVALID_VALUE);
  int version = 0;
  OK(CU(cuDriverGetVersion)(&version));
  CHECK(version >= 12040);
}

TEST_CASE("device facts", "[forwarded]") {
  OK(CU(cuInit)(0));
  CUdevice device = -1;
  OK(CU(cuDeviceGet)(&device, 0));
  CHECK(CU(cuDeviceGet)(&device, 4711) == CUDA_ERROR_INVALID_DEVICE);
  char name[64] = "";
  OK(CU(cuDeviceGetName)(name, sizeof name, device));
  CHECK(std::string(name) != "");
  size_t total = 0;
  OK(CU(cuDeviceTotalMem)(&total, device));
  CHECK(total >= (size_t{1} << 20));
  int value = 0;
  for (int attribute = 1; attribute <= 119; ++attribute) {
    INFO("attribute " << attribute);
    CHECK(CU(cuDeviceGetAttribute)(&value, static_cast<CUdevice_attribute>(attribute), device) == CUDA_SUCCESS);
  }
  OK(CU(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
  CHECK(value == 32);
  OK(CU(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
  CHECK(value == 1);
  CHECK(CU(cuDeviceGetAttribute)(&value, beyond<CUdevice_attribute>(0), device) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceGetAttribute)(&value, beyond<CUdevice_attribute>(1023), device) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("error names and texts", "[forwarded]") {
  const char* text = nullptr;
  OK(CU(cuGetErrorName)(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
  CHECK(std::string(text) == "CUDA_ERROR_ILLEGAL_ADDRESS");
  OK(CU(cuGetErrorString)(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
  CHECK(std::string(text) == "an illegal memory access was encountered");
  OK(CU(cuGetErrorName)(CUDA_SUCCESS, &text));
  CHECK(std::string(text) == "CUDA_SUCCESS");
  CHECK(CU(cuGetErrorName)(beyond<CUresult>(4711), &text) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("the current context is a stack of the thread", "[forwarded]") {
  OK(CU(cuInit)(0));
  CUcontext context = nullptr;
  CUcontext seen = nullptr;
  size_t free_bytes = 0;
  CHECK(CU(cuMemGetInfo)(&free_bytes, nullptr) == CUDA_ERROR_INVALID_CONTEXT);
  OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
  OK(CU(cuCtxGetCurrent)(&seen));
  CHECK(seen == nullptr);
  OK(CU(cuCtxPushCurrent)(context));
  OK(CU(cuCtxPushCurrent)(context));
  OK(CU(cuCtxPopCurrent)(&seen));
  CHECK(seen == context);
  OK(CU(cuCtxSetCurrent)(nullptr));
  CHECK(CU(cuCtxPopCurrent)(&seen) == CUDA_ERROR_INVALID_CONTEXT);
  OK(CU(cuDevicePrimaryCtxRelease)(0));
}

TEST_CASE("limits and priorities", "[forwarded]") {
  const DeviceContext context;
  size_t stack = 0;
  OK(CU(cuCtxGetLimit)(&stack, CU_LIMIT_STACK_SIZE));
  CHECK(stack >= 1024);
  // A shared context keeps the stack it was made with: there only less can be asked for.
  const size_t wanted = driver_kind() == DriverKind::forwarded ? 512 : 4096;
  OK(CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, wanted));
  OK(CU(cuCtxGetLimit)(&stack, CU_LIMIT_STACK_SIZE));
  CHECK(stack == wanted);
  CHECK(CU(cuCtxGetLimit)(&stack, beyond<CUlimit>(77)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuCtxSetLimit)(beyond<CUlimit>(77), 1) == CUDA_ERROR_INVALID_VALUE);
  int least = 1;
  int greatest = 1;
  OK(CU(cuCtxGetStreamPriorityRange)(&least, &greatest));
  CHECK(least == 0);
  CHECK(greatest < 0);
}

TEST_CASE("entry points by name and version", "[forwarded]") {
  OK(CU(cuInit)(0));
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  OK(CU(cuGetProcAddress)("cuMemAlloc", &found, 12000, 0, &status));
  CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS);
  if (driver_kind() != DriverKind::real) CHECK(found == reinterpret_cast<void*>(CU(cuMemAlloc)));
  OK(CU(cuGetProcAddress)("cuMemAlloc", &found, 12000, 0, nullptr));

  // The call succeeds whatever it finds; the status, and the pointer, say what that was.
  found = &found;
  CHECK(CU(cuGetProcAddress)("cuNoSuchFunction", &found, 12000, 0, &status) == CUDA_SUCCESS);
  CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  CHECK(found == nullptr);
  found = &found;
  CHECK(CU(cuGetProcAddress)("cuNoSuchFunction", &found, 12000, 0, nullptr) == CUDA_SUCCESS);
  CHECK(found == nullptr);
  found = &found;
  CHECK(CU(cuGetProcAddress)("cuLaunchKernelEx", &found, 11000, 0, &status) == CUDA_SUCCESS);  // since 11.8
  CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  CHECK(found == nullptr);
  found = &found;
  CHECK(CU(cuGetProcAddress)("cuLaunchKernelEx", &found, 11000, 0, nullptr) == CUDA_SUCCESS);
  CHECK(found == nullptr);

  CHECK(CU(cuGetProcAddress)("", &found, 12000, 0, nullptr) == CUDA_SUCCESS);
  CHECK(found == nullptr);
  if (driver_kind() != DriverKind::real) {  // which falls over
    CHECK(CU(cuGetProcAddress)(nullptr, &found, 12000, 0, &status) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CU(cuGetProcAddress)("cuMemAlloc", nullptr, 12000, 0, &status) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(CU(cuGetProcAddress)("cuMemcpy", &found, 12000, 4, &status) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuGetProcAddress)("cuMemcpy", &found, 12000, 3, &status));  // both default streams: the thread's own
  CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS);
  CHECK(found != nullptr);
}

TEST_CASE("entry points by the look-up of CUDA 11", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("it has the look-up of CUDA 12 alone");
  OK(CU(cuInit)(0));
  using LookUp = CUresult (*)(const char*, void**, int, cuuint64_t);
  const auto look_up = driver_symbol<LookUp>("cuGetProcAddress");
  void* found = nullptr;
  OK(look_up("cuMemAlloc", &found, 12000, 0));
  CHECK(found != nullptr);
  found = &found;
  CHECK(look_up("cuNoSuchFunction", &found, 12000, 0) == CUDA_ERROR_NOT_FOUND);
  CHECK(look_up("cuLaunchKernelEx", &found, 11000, 0) == CUDA_ERROR_NOT_FOUND);  // since 11.8
  CHECK(found == &found);
}

TEST_CASE("whoever registers for notifications of budgets is forgotten when it says so", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("asked of the library in front of the CPU driver");
  OK(CU(cuInit)(0));
  const auto never = [](CUasyncNotificationInfo*, void*, CUasyncCallbackHandle) { std::abort(); };
  CUasyncCallbackHandle first = nullptr;
  CUasyncCallbackHandle second = nullptr;
  OK(CU(cuDeviceRegisterAsyncNotification)(0, never, nullptr, &first));
  OK(CU(cuDeviceRegisterAsyncNotification)(0, never, nullptr, &second));
  CHECK(first != second);
  OK(CU(cuDeviceUnregisterAsyncNotification)(0, first));
  OK(CU(cuDeviceUnregisterAsyncNotification)(0, second));
  if (refuses_dead_handles()) CHECK(CU(cuDeviceUnregisterAsyncNotification)(0, first) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceRegisterAsyncNotification)(4711, never, nullptr, &first) == CUDA_ERROR_INVALID_DEVICE);
}
