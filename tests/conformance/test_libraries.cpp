// SPDX-License-Identifier: Apache-2.0
// cuLibrary* and cuKernel*.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "loaded_image.hpp"

using namespace mpsshim::test;

namespace {

class LoadedLibrary {
 public:
  LoadedLibrary() { OK(CU(cuLibraryLoadData)(&library_, image_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0)); }
  ~LoadedLibrary() { CU(cuLibraryUnload)(library_); }
  LoadedLibrary(const LoadedLibrary&) = delete;
  LoadedLibrary& operator=(const LoadedLibrary&) = delete;

  CUlibrary handle() const { return library_; }
  CUkernel kernel(const char* name) const {
    CUkernel found = nullptr;
    OK(CU(cuLibraryGetKernel)(&found, library_, name));
    return found;
  }

 private:
  std::string image_ = read_image("kernels.fatbin");
  CUlibrary library_ = nullptr;
};

CUfunction as_function(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }

// counter, then table[0], as a kernel sees them.
int counter_of(CUkernel reader) {
  const DeviceArray<int> out(2);
  OK(launch(as_function(reader), nullptr, 1, 1, out.address()));
  return out[0];
}

}  // namespace

TEST_CASE("a library's kernels can be named, counted and listed", "[forwarded]") {
  const DeviceContext context;
  const LoadedLibrary library;
  unsigned count = 0;
  OK(CU(cuLibraryGetKernelCount)(&count, library.handle()));
  CHECK(count == 23);
  std::vector<CUkernel> kernels(count);
  OK(CU(cuLibraryEnumerateKernels)(kernels.data(), count, library.handle()));
  CHECK(std::count(kernels.begin(), kernels.end(), library.kernel("store")) == 1);
  for (const CUkernel kernel : kernels) {
    const char* name = nullptr;
    OK(CU(cuKernelGetName)(&name, kernel));
    CHECK(library.kernel(name) == kernel);  // asked for twice it is the same
    CUlibrary owner = nullptr;
    OK(CU(cuKernelGetLibrary)(&owner, kernel));
    CHECK(owner == library.handle());
  }
  CHECK(CU(cuLibraryGetKernelCount)(nullptr, library.handle()) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuLibraryEnumerateKernels)(nullptr, count, library.handle()) == CUDA_ERROR_INVALID_VALUE);
  CUkernel none = nullptr;
  CHECK(CU(cuLibraryGetKernel)(&none, library.handle(), "no_such_kernel") == CUDA_ERROR_NOT_FOUND);
  CHECK(CU(cuLibraryGetKernel)(nullptr, library.handle(), "store") == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("kernels have the attributes and parameters of their functions", "[forwarded]") {
  const DeviceContext context;
  const LoadedLibrary library;
  const CUkernel kernel = library.kernel("vector_add");
  CUfunction function = nullptr;
  OK(CU(cuKernelGetFunction)(&function, kernel));
  for (int i = CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK; i <= CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT; ++i) {
    const auto attribute = static_cast<CUfunction_attribute>(i);
    int of_kernel = -7;
    int of_function = -8;
    OK(CU(cuKernelGetAttribute)(&of_kernel, attribute, kernel, 0));
    OK(CU(cuFuncGetAttribute)(&of_function, attribute, function));
    CHECK(of_kernel == of_function);
  }
  const size_t offsets[] = {0, 8, 16, 24};
  const size_t sizes[] = {8, 8, 8, 4};
  for (size_t i = 0; i < 4; ++i) {
    size_t offset = 99;
    size_t size = 99;
    OK(CU(cuKernelGetParamInfo)(kernel, i, &offset, &size));
    CHECK(offset == offsets[i]);
    CHECK(size == sizes[i]);
  }
  size_t offset = 0;
  size_t size = 0;
  OK(CU(cuKernelGetParamInfo)(kernel, 1, &offset, nullptr));
  CHECK(CU(cuKernelGetParamInfo)(kernel, 4, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
  int value = 0;
  CHECK(CU(cuKernelGetAttribute)(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, 99) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(CU(cuKernelGetAttribute)(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuKernelSetAttribute)(CU_FUNC_ATTRIBUTE_NUM_REGS, 8, kernel, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("dynamic shared memory beyond the default is asked for on a kernel", "[forwarded]") {
  const DeviceContext context;
  const LoadedLibrary library;
  const CUkernel kernel = library.kernel("shared_memory");
  const DeviceArray<int> out(1);
  const auto launch_with = [&](unsigned shared_bytes) {
    CUdeviceptr address = out.address();
    void* arguments[] = {&address};
    return CU(cuLaunchKernel)(as_function(kernel), 1, 1, 1, 32, 1, 1, shared_bytes, nullptr, arguments, nullptr);
  };
  CHECK(launch_with(49 * 1024) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuKernelSetAttribute)(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 50 * 1024, kernel, 0));
  int value = 0;
  OK(CU(cuKernelGetAttribute)(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, 0));
  CHECK(value == 50 * 1024);
  OK(launch_with(49 * 1024));
  OK(CU(cuCtxSynchronize)());
  CHECK(out[0] == 1);
  OK(CU(cuKernelSetCacheConfig)(kernel, CU_FUNC_CACHE_PREFER_SHARED, 0));
}

TEST_CASE("a library's variables, by library and by module", "[forwarded]") {
  const DeviceContext context;
  const LoadedLibrary library;
  CUdeviceptr counter = 0;
  size_t bytes = 0;
  OK(CU(cuLibraryGetGlobal)(&counter, &bytes, library.handle(), "counter"));
  CHECK(bytes == sizeof(int));
  CUmodule module = nullptr;
  OK(CU(cuLibraryGetModule)(&module, library.handle()));
  CUdeviceptr same = 0;
  OK(CU(cuModuleGetGlobal)(&same, nullptr, module, "counter"));
  CHECK(same == counter);
  CUfunction store = nullptr;
  OK(CU(cuModuleGetFunction)(&store, module, "store"));
  OK(launch(store, nullptr, 1, 1, counter, 77u));
  CHECK(counter_of(library.kernel("read_variables")) == 77);
  CUdeviceptr none = 0;
  CHECK(CU(cuLibraryGetGlobal)(&none, &bytes, library.handle(), "no_such_variable") == CUDA_ERROR_NOT_FOUND);
  CHECK(CU(cuLibraryGetGlobal)(&none, &bytes, library.handle(), nullptr) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("libraries outlive their context, their variables do not", "[forwarded]") {
  if (driver_kind() == DriverKind::cpu) MPSSHIM_SKIP("the CPU driver keeps variables over a reset");
  const DeviceContext context;
  const LoadedLibrary library;
  const CUkernel reader = library.kernel("read_variables");
  const CUkernel shared = library.kernel("shared_memory");
  OK(CU(cuKernelSetAttribute)(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 50 * 1024, shared, 0));
  CUdeviceptr counter = 0;
  OK(CU(cuLibraryGetGlobal)(&counter, nullptr, library.handle(), "counter"));
  OK(CU(cuMemsetD32)(counter, 99, 1));
  CHECK(counter_of(reader) == 99);
  OK(CU(cuDevicePrimaryCtxReset)(0));
  CUcontext again = nullptr;
  OK(CU(cuDevicePrimaryCtxRetain)(&again, 0));
  OK(CU(cuCtxSetCurrent)(again));
  CHECK(counter_of(reader) == 5);
  OK(CU(cuLibraryGetGlobal)(&counter, nullptr, library.handle(), "counter"));
  OK(CU(cuMemsetD32)(counter, 98, 1));
  CHECK(counter_of(reader) == 98);
  const DeviceArray<int> out(1);
  CUdeviceptr address = out.address();
  void* arguments[] = {&address};
  OK(CU(cuLaunchKernel)(as_function(shared), 1, 1, 1, 32, 1, 1, 49 * 1024, nullptr, arguments, nullptr));
  OK(CU(cuCtxSynchronize)());
  OK(CU(cuDevicePrimaryCtxRelease)(0));
  OK(CU(cuDevicePrimaryCtxRetain)(&again, 0));  // for the context's end
}

TEST_CASE("unified functions are of devices that have them", "[forwarded]") {
  const DeviceContext context;
  const LoadedLibrary library;
  int has_any = 0;
  OK(CU(cuDeviceGetAttribute)(&has_any, CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 0));
  if (has_any != 0 || driver_kind() == DriverKind::cpu) MPSSHIM_SKIP("for drivers of devices without unified function pointers");
  void* pointer = nullptr;
  CHECK(CU(cuLibraryGetUnifiedFunction)(&pointer, library.handle(), "twice") == CUDA_ERROR_NOT_FOUND);
}

TEST_CASE("libraries and kernels that are none", "[forwarded]") {
  const DeviceContext context;
  const std::string image = read_image("kernels.fatbin");
  CUlibrary library = nullptr;
  CHECK(CU(cuLibraryLoadData)(nullptr, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuLibraryLoadData)(&library, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuLibraryLoadFromFile)(&library, "/no/such/file", nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_ERROR_FILE_NOT_FOUND);
  OK(CU(cuLibraryLoadFromFile)(&library, MPSSHIM_TEST_IMAGES "/kernels.fatbin", nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  OK(CU(cuLibraryGetKernel)(&kernel, library, "store"));
  OK(CU(cuLibraryUnload)(library));
  if (!refuses_dead_handles()) return;
  CHECK(CU(cuLibraryUnload)(library) == CUDA_ERROR_INVALID_HANDLE);
  CUfunction function = nullptr;
  const char* name = nullptr;
  CHECK(CU(cuKernelGetFunction)(&function, kernel) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuKernelGetName)(&name, kernel) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuLibraryGetKernel)(&kernel, nullptr, "store") == CUDA_ERROR_INVALID_HANDLE);
}
