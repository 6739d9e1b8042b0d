// SPDX-License-Identifier: Apache-2.0
// __managed__ variables: one address for the host and for kernels, each module's its own, the initial values.
#include "driver_under_test.hpp"
#include "loaded_image.hpp"

using namespace mpsshim::test;

namespace {

class Library {
 public:
  explicit Library(const char* name = "managed.fatbin") : image_(read_image(name)) {
    OK(CU(cuLibraryLoadData)(&library_, image_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  }
  ~Library() { CU(cuLibraryUnload)(library_); }
  Library(const Library&) = delete;

  CUlibrary handle() const { return library_; }
  template <class T>
  volatile T* managed(const char* name) const {
    CUdeviceptr address = 0;
    size_t bytes = 0;
    OK(CU(cuLibraryGetManaged)(&address, &bytes, library_, name));
    CHECK(bytes >= sizeof(T));
    return reinterpret_cast<volatile T*>(address);
  }
  CUfunction function(const char* name) const {
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    OK(CU(cuLibraryGetKernel)(&kernel, library_, name));
    OK(CU(cuKernelGetFunction)(&function, kernel));
    return function;
  }

 private:
  std::string image_;
  CUlibrary library_ = nullptr;
};

template <class... Arguments>
void run(CUfunction function, unsigned threads, Arguments... arguments) {
  OK(launch(function, nullptr, 1, threads, arguments...));
  OK(CU(cuCtxSynchronize)());
}

}  // namespace

TEST_CASE("host and kernels read and write a managed variable", "[forwarded][managed]") {
  const DeviceContext context;
  const char* const image = GENERATE("managed.fatbin", "managed.ptx", "managed.cubin", "managed_debug.cubin");
  const bool is_machine_code = std::strstr(image, ".cubin") != nullptr;
  if (is_machine_code && (is_cpu_device() || !std::ifstream(std::string(MPSSHIM_TEST_IMAGES "/") + image).good())) {
    return;  // for the GPU at hand, where the build names it
  }
  const Library library(image);
  volatile int* const counter = library.managed<int>("managed_counter");
  CHECK(*counter == 5);
  *counter = 40;
  run(library.function("count"), 32, 2);
  CHECK(*counter == 104);
  *counter = *counter + 1;
  run(library.function("count"), 1, 1);
  CHECK(*counter == 106);

  volatile double* const table = library.managed<double[300]>("managed_table")[0];
  CHECK(table[299] == 0);
  table[17] = 0.5;
  run(library.function("fill_table"), 300, 3.0);
  CHECK(table[17] == 20.5);
  CHECK(table[299] == 302);

  // An address that a kernel keeps is the one that the host has.
  run(library.function("take_address"), 1);
  CUdeviceptr pointer = 0, kept = 0;
  OK(CU(cuLibraryGetGlobal)(&pointer, nullptr, library.handle(), "device_pointer"));
  OK(CU(cuMemcpyDtoH)(&kept, pointer, sizeof kept));
  CHECK(kept == reinterpret_cast<CUdeviceptr>(counter));
  run(library.function("count_by_address"), 1);
  CHECK(*counter == 206);
  int copied = 0;
  OK(CU(cuMemcpyDtoH)(&copied, kept, sizeof copied));
  CHECK(copied == 206);
  OK(CU(cuMemsetD32)(kept, 9, 1));
  OK(CU(cuCtxSynchronize)());
  CHECK(*counter == 9);
}

TEST_CASE("a managed variable is found by its name, and by no other", "[forwarded][managed]") {
  const DeviceContext context;
  const LoadedImage module("managed.fatbin");
  const Library library;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  OK(CU(cuLibraryGetManaged)(nullptr, &bytes, library.handle(), "managed_table"));
  CHECK(bytes == 2400);
  OK(CU(cuLibraryGetManaged)(&address, nullptr, library.handle(), "managed_table"));
  CHECK(CU(cuLibraryGetManaged)(&address, &bytes, library.handle(), "device_counter") == CUDA_ERROR_NOT_FOUND);
  CHECK(CU(cuLibraryGetManaged)(&address, &bytes, library.handle(), "nothing") == CUDA_ERROR_NOT_FOUND);
  if (refuses_dead_handles()) CHECK(CU(cuLibraryGetManaged)(&address, &bytes, nullptr, "managed_table") == CUDA_ERROR_INVALID_HANDLE);

  OK(CU(cuModuleGetGlobal)(&address, &bytes, module.handle(), "managed_counter"));
  CHECK(bytes == 4);
  CHECK(*reinterpret_cast<int*>(address) == 5);
  run(module.function("count"), 1, 3);
  CHECK(*reinterpret_cast<int*>(address) == 8);
  CHECK(*library.managed<int>("managed_counter") == 5);  // another module's
  CHECK(CU(cuMemFree)(address) != CUDA_SUCCESS);
  CHECK(*reinterpret_cast<int*>(address) == 8);

  if (!is_cpu_driver()) {  // which has managed memory by name only
    int is_managed = 0;
    OK(CU(cuPointerGetAttribute)(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
    CHECK(is_managed == 1);
  }
}

TEST_CASE("a module that is loaded again has its managed variables' initial values", "[forwarded][managed]") {
  const DeviceContext context;
  for (int round = 0; round < 3; ++round) {
    const LoadedImage module("managed.fatbin");
    CUdeviceptr address = 0;
    OK(CU(cuModuleGetGlobal)(&address, nullptr, module.handle(), "managed_counter"));
    CHECK(*reinterpret_cast<int*>(address) == 5);
    OK(CU(cuModuleGetGlobal)(&address, nullptr, module.handle(), "managed_table"));
    CHECK(*reinterpret_cast<double*>(address) == 0);
    run(module.function("count"), 3, 3);
    run(module.function("fill_table"), 3, 3.0);
    CHECK(*reinterpret_cast<double*>(address) == 3);
  }
}
