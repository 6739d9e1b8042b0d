// SPDX-License-Identifier: Apache-2.0
// What nvcc -rdc=true puts into a program: a wrapper that names the fat binary that the linker made, for some architectures, and the fat
// binaries of the objects. Where the linked one has nothing for the device the driver links the objects.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "loaded_image.hpp"

using namespace mpsshim::test;

namespace {

// __fatBinC_Wrapper_t of fatbinary_section.h.
struct Wrapper {
  std::uint32_t magic = 0x466243b1;
  std::uint32_t version = 2;
  const void* linked = nullptr;
  const void* const* objects = nullptr;  // ended by null
};

// A container without entries: what the linker makes where every architecture is a virtual one.
struct EmptyFatbin {
  std::uint32_t magic = 0xba55ed50;
  std::uint16_t version = 1;
  std::uint16_t header_bytes = 16;
  std::uint64_t body_bytes = 0;
};

class LinkedProgram {
 public:
  LinkedProgram(const void* linked, const std::vector<const char*>& objects) {
    contents_.reserve(objects.size());
    for (const char* const name : objects) contents_.push_back(read_image(name));
    for (const std::string& content : contents_) objects_.push_back(content.data());
    objects_.push_back(nullptr);
    const Wrapper wrapper{.linked = linked, .objects = objects_.data()};
    OK(CU(cuLibraryLoadData)(&library_, &wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0));
  }
  ~LinkedProgram() { CU(cuLibraryUnload)(library_); }
  LinkedProgram(const LinkedProgram&) = delete;
  LinkedProgram& operator=(const LinkedProgram&) = delete;

  CUlibrary library() const { return library_; }
  CUfunction function(const char* name) const {
    CUkernel kernel = nullptr;
    OK(CU(cuLibraryGetKernel)(&kernel, library_, name));
    CUfunction function = nullptr;
    OK(CU(cuKernelGetFunction)(&function, kernel));
    return function;
  }

 private:
  std::vector<std::string> contents_;
  std::vector<const void*> objects_;
  CUlibrary library_ = nullptr;
};

void expect_both_files_to_work(const LinkedProgram& program) {
  const DeviceArray<int> out(1);
  OK(launch(program.function("calls_the_other"), nullptr, 1, 1, out.address(), 5));
  OK(CU(cuCtxSynchronize)());
  CHECK(out[0] == 115);
  CUdeviceptr variable = 0;
  size_t bytes = 0;
  OK(CU(cuLibraryGetGlobal)(&variable, &bytes, program.library(), "of_the_other"));
  CHECK(bytes == 4);
  OK(CU(cuMemsetD32)(variable, 1000, 1));
  OK(launch(program.function("calls_the_other"), nullptr, 1, 1, out.address(), 5));
  OK(CU(cuCtxSynchronize)());
  CHECK(out[0] == 1015);
}

}  // namespace

TEST_CASE("a linked program has code for its own architecture or is linked anew", "[forwarded]") {
  const DeviceContext context;
  const std::string linked = read_image("linked_program.fatbin");
  const LinkedProgram program(linked.data(), {"separate.fatbin", "linked.fatbin"});
  expect_both_files_to_work(program);
  const LinkedProgram again(linked.data(), {"separate.fatbin", "linked.fatbin"});  // its variables are its own
  expect_both_files_to_work(again);
}

TEST_CASE("a linked program of virtual architectures alone is linked by the driver", "[forwarded]") {
  const DeviceContext context;
  const EmptyFatbin nothing;
  const LinkedProgram program(&nothing, {"separate.fatbin", "linked.fatbin"});
  expect_both_files_to_work(program);
}

namespace {

// What NVIDIA's driver finds out when a kernel is asked for may be said at the load, too.
CUresult look_for_kernel(const Wrapper& wrapper) {
  CUlibrary library = nullptr;
  if (const CUresult error = CU(cuLibraryLoadData)(&library, &wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0); error != CUDA_SUCCESS) return error;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  CUresult error = CU(cuLibraryGetKernel)(&kernel, library, "calls_the_other");
  if (error == CUDA_SUCCESS) error = CU(cuKernelGetFunction)(&function, kernel);
  OK(CU(cuLibraryUnload)(library));
  return error;
}

}  // namespace

TEST_CASE("objects that lack what another of them needs are not linked", "[forwarded]") {
  const DeviceContext context;
  const EmptyFatbin nothing;
  const std::string separate = read_image("separate.fatbin");
  const std::array<const void*, 2> objects = {separate.data(), nullptr};
  const Wrapper wrapper{.linked = &nothing, .objects = objects.data()};
  CHECK(look_for_kernel(wrapper) != CUDA_SUCCESS);
  const Wrapper of_nothing{.linked = &nothing, .objects = &objects[1]};
  CHECK(look_for_kernel(of_nothing) != CUDA_SUCCESS);
}

TEST_CASE("a module is what was linked, and never linked of its objects", "[forwarded]") {
  const DeviceContext context;
  const EmptyFatbin nothing;
  const std::string separate = read_image("separate.fatbin");
  const std::string linked = read_image("linked.fatbin");
  const std::array<const void*, 3> objects = {separate.data(), linked.data(), nullptr};
  const Wrapper wrapper{.linked = &nothing, .objects = objects.data()};
  CUmodule module = nullptr;
  CHECK(CU(cuModuleLoadData)(&module, &wrapper) == CUDA_ERROR_INVALID_IMAGE);
  CHECK(CU(cuModuleLoadFatBinary)(&module, &wrapper) == CUDA_ERROR_INVALID_IMAGE);
}

TEST_CASE("a managed variable that several files of a linked program use", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no managed variables of its own: libmpsshim.so places them");
  const DeviceContext context;
  const EmptyFatbin nothing;
  const LinkedProgram program(&nothing, {"managed_separate.fatbin", "managed_linked.fatbin"});
  CUdeviceptr address = 0;
  size_t bytes = 0;
  OK(CU(cuLibraryGetManaged)(&address, &bytes, program.library(), "shared_with_host"));
  CHECK(bytes == 4);
  auto* const shared = reinterpret_cast<volatile int*>(address);  // NOLINT(performance-no-int-to-ptr)
  CHECK(*shared == 40);
  OK(launch(program.function("add_to_shared"), nullptr, 1, 1, 2));
  OK(launch(program.function("double_shared"), nullptr, 1, 1));
  OK(CU(cuCtxSynchronize)());
  CHECK(*shared == 84);
}
