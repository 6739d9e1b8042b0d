// SPDX-License-Identifier: Apache-2.0
// The ABI of CUDA 3.1 and older under the plain names. Device pointers have 32 bits there: memory above 4 GiB cannot be named by one.
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

namespace {

// As cuda.h declares them where it declares the old ABI (__CUDA_API_VERSION_INTERNAL).
struct OldCopy2D {
  unsigned source_x, source_y;
  CUmemorytype source_type;
  const void* source_host;
  unsigned source_device;
  CUarray source_array;
  unsigned source_pitch;
  unsigned destination_x, destination_y;
  CUmemorytype destination_type;
  void* destination_host;
  unsigned destination_device;
  CUarray destination_array;
  unsigned destination_pitch;
  unsigned width, height;
};
static_assert(sizeof(OldCopy2D) == 96);

struct OldCopy3D {
  unsigned source_x, source_y, source_z, source_level;
  CUmemorytype source_type;
  const void* source_host;
  unsigned source_device;
  CUarray source_array;
  void* reserved0;
  unsigned source_pitch, source_height;
  unsigned destination_x, destination_y, destination_z, destination_level;
  CUmemorytype destination_type;
  void* destination_host;
  unsigned destination_device;
  CUarray destination_array;
  void* reserved1;
  unsigned destination_pitch, destination_height;
  unsigned width, height, depth;
};
static_assert(sizeof(OldCopy3D) == 144);

constexpr unsigned kWidth = 64;
constexpr unsigned kHeight = 16;
constexpr unsigned kPitch = kWidth * sizeof(float);

// What a call answers must be one of ours; what NVIDIA's library answers is told, so that it can be compared.
void expect(const char* name, CUresult seen, CUresult ours) {
  INFO(name);
  if (driver_kind() != DriverKind::real) {
    CHECK(seen == ours);
    return;
  }
  const char* text = nullptr;
  CU(cuGetErrorName)(seen, &text);
  std::printf("recorded: %s: %d %s\n", name, static_cast<int>(seen), text == nullptr ? "(no name)" : text);
}

// In a context of the primary API or of cuCtxCreate_v2 and later, NVIDIA's driver takes no call whose structures or sizes are of CUDA 3.1 (H200,
// driver 580); here they work in every context.
bool refuses_mixed_versions(CUresult result) {
  const bool is_real = driver_kind() == DriverKind::real;
  CHECK(result == (is_real ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS));
  return is_real;
}

std::vector<float> numbers(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

OldCopy2D into(CUarray array, const float* from) {
  OldCopy2D copy{};
  copy.source_type = CU_MEMORYTYPE_HOST;
  copy.source_host = from;
  copy.source_pitch = kPitch;
  copy.destination_type = CU_MEMORYTYPE_ARRAY;
  copy.destination_array = array;
  copy.width = kPitch;
  copy.height = kHeight;
  return copy;
}

OldCopy2D out_of(CUarray array, float* to) {
  OldCopy2D copy{};
  copy.source_type = CU_MEMORYTYPE_ARRAY;
  copy.source_array = array;
  copy.destination_type = CU_MEMORYTYPE_HOST;
  copy.destination_host = to;
  copy.destination_pitch = kPitch;
  copy.width = kPitch;
  copy.height = kHeight;
  return copy;
}

}  // namespace

TEST_CASE("host memory and sizes, as CUDA 3.1 asked for them", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("asked of the library in front of the CPU driver");
  const DeviceContext context;
  void* memory = nullptr;
  if (refuses_mixed_versions(call("cuMemAllocHost", &memory, 4096u))) return;
  static_cast<char*>(memory)[4095] = 1;
  OK(CU(cuMemFreeHost)(memory));
  unsigned free_bytes = 0;
  unsigned total_bytes = 0;
  OK(call("cuMemGetInfo", &free_bytes, &total_bytes));
  CHECK(total_bytes != 0);
  CHECK(free_bytes <= total_bytes);
}

TEST_CASE("copies between host memory and arrays, as CUDA 3.1 described them", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("asked of the library in front of the CPU driver");
  const DeviceContext context;
  const CUstream stream = new_stream();
  const std::vector<float> values = numbers(kWidth * kHeight);
  const OldCopy2D nothing{};
  if (driver_kind() == DriverKind::real && refuses_mixed_versions(call("cuMemcpy2D", &nothing))) return;
  const CUDA_ARRAY3D_DESCRIPTOR flat{kWidth, kHeight, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CUarray array = nullptr;
  OK(CU(cuArray3DCreate)(&array, &flat));
  for (const char* name : {"cuMemcpy2D", "cuMemcpy2DUnaligned"}) {
    INFO(name);
    std::vector<float> seen(values.size(), 0);
    const OldCopy2D up = into(array, values.data());
    const OldCopy2D down = out_of(array, seen.data());
    OK(call(name, &up));
    OK(call(name, &down));
    CHECK(seen == values);
  }
  std::vector<float> seen(values.size(), 0);
  const OldCopy2D up = into(array, values.data());
  const OldCopy2D down = out_of(array, seen.data());
  OK(call("cuMemcpy2DAsync", &up, stream));
  OK(call("cuMemcpy2DAsync", &down, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(seen == values);
  CHECK(call("cuMemcpy2D", static_cast<const OldCopy2D*>(nullptr)) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuArrayDestroy)(array));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("copies of volumes, as CUDA 3.1 described them", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("asked of the library in front of the CPU driver");
  const DeviceContext context;
  constexpr unsigned kDepth = 3;
  const std::vector<float> values = numbers(kWidth * kHeight * kDepth);
  std::vector<float> seen(values.size(), 0);
  const CUDA_ARRAY3D_DESCRIPTOR volume{kWidth, kHeight, kDepth, CU_AD_FORMAT_FLOAT, 1, 0};
  CUarray array = nullptr;
  OK(CU(cuArray3DCreate)(&array, &volume));
  OldCopy3D up{};
  up.source_type = CU_MEMORYTYPE_HOST;
  up.source_host = values.data();
  up.source_pitch = kPitch;
  up.source_height = kHeight;
  up.destination_type = CU_MEMORYTYPE_ARRAY;
  up.destination_array = array;
  up.width = kPitch;
  up.height = kHeight;
  up.depth = kDepth;
  OldCopy3D down{};
  down.source_type = CU_MEMORYTYPE_ARRAY;
  down.source_array = array;
  down.destination_type = CU_MEMORYTYPE_HOST;
  down.destination_host = seen.data();
  down.destination_pitch = kPitch;
  down.destination_height = kHeight;
  down.width = kPitch;
  down.height = kHeight;
  down.depth = kDepth;
  if (refuses_mixed_versions(call("cuMemcpy3D", &up))) return;
  OK(call("cuMemcpy3DAsync", &down, CUstream{nullptr}));
  OK(CU(cuStreamSynchronize)(nullptr));
  CHECK(seen == values);
  OK(CU(cuArrayDestroy)(array));
}

TEST_CASE("an address of 32 bits that nobody was given is refused as any other", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("asked of the library in front of the CPU driver");
  const DeviceContext context;
  const CUstream stream = new_stream();
  CUarray array = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR flat{kWidth, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  OK(CU(cuArray3DCreate)(&array, &flat));
  constexpr unsigned kNobodys = 0x10'0000;
  unsigned word = 77;
  const std::pair<const char*, std::function<CUresult(unsigned)>> calls[] = {
      {"cuMemcpyHtoD", [&](unsigned n) { return call("cuMemcpyHtoD", kNobodys, static_cast<const void*>(&word), n); }},
      {"cuMemcpyDtoH", [&](unsigned n) { return call("cuMemcpyDtoH", static_cast<void*>(&word), kNobodys, n); }},
      {"cuMemcpyDtoD", [&](unsigned n) { return call("cuMemcpyDtoD", kNobodys, kNobodys + 64, n); }},
      {"cuMemcpyAtoD", [&](unsigned n) { return call("cuMemcpyAtoD", kNobodys, array, 0u, n); }},
      {"cuMemcpyDtoA", [&](unsigned n) { return call("cuMemcpyDtoA", array, 0u, kNobodys, n); }},
      {"cuMemcpyHtoDAsync", [&](unsigned n) { return call("cuMemcpyHtoDAsync", kNobodys, static_cast<const void*>(&word), n, stream); }},
      {"cuMemcpyDtoHAsync", [&](unsigned n) { return call("cuMemcpyDtoHAsync", static_cast<void*>(&word), kNobodys, n, stream); }},
      {"cuMemcpyDtoDAsync", [&](unsigned n) { return call("cuMemcpyDtoDAsync", kNobodys, kNobodys + 64, n, stream); }},
      {"cuMemsetD8", [&](unsigned n) { return call("cuMemsetD8", kNobodys, static_cast<unsigned char>(1), n); }},
      {"cuMemsetD16", [&](unsigned n) { return call("cuMemsetD16", kNobodys, static_cast<unsigned short>(1), n); }},
      {"cuMemsetD32", [&](unsigned n) { return call("cuMemsetD32", kNobodys, 1u, n); }},
      {"cuMemsetD2D8", [&](unsigned n) { return call("cuMemsetD2D8", kNobodys, 512u, static_cast<unsigned char>(1), n, n); }},
      {"cuMemsetD2D16", [&](unsigned n) { return call("cuMemsetD2D16", kNobodys, 512u, static_cast<unsigned short>(1), n, n); }},
      {"cuMemsetD2D32", [&](unsigned n) { return call("cuMemsetD2D32", kNobodys, 512u, 1u, n, n); }},
  };
  for (const auto& [name, ask] : calls) {
    expect(name, ask(4), CUDA_ERROR_INVALID_VALUE);
    expect((std::string(name) + " of nothing").c_str(), ask(0), CUDA_SUCCESS);
  }
  expect("cuMemFree", call("cuMemFree", kNobodys), CUDA_ERROR_INVALID_VALUE);
  expect("cuMemFree of nothing", call("cuMemFree", 0u), CUDA_SUCCESS);
  unsigned base = 0, size = 0;
  expect("cuMemGetAddressRange", call("cuMemGetAddressRange", &base, &size, kNobodys), CUDA_ERROR_NOT_FOUND);
  CHECK(word == 77);
  OK(CU(cuArrayDestroy)(array));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("nobody is given half of a device address", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("asked of the library in front of the CPU driver");
  const DeviceContext context;
  const LoadedImage image;
  size_t free_before = 0, free_after = 0, total = 0;
  OK(CU(cuMemGetInfo)(&free_before, &total));
  unsigned address = 77, pitch = 78;
  const CUresult allocated = call("cuMemAlloc", &address, 64u << 20);
  expect("cuMemAlloc", allocated, CUDA_ERROR_OUT_OF_MEMORY);
  if (allocated == CUDA_SUCCESS) OK(call("cuMemFree", address));
  const CUresult rows = call("cuMemAllocPitch", &address, &pitch, 1000u, 70'000u, 4u);
  expect("cuMemAllocPitch", rows, CUDA_ERROR_OUT_OF_MEMORY);
  if (rows == CUDA_SUCCESS) OK(call("cuMemFree", address));
  // What had been made for it goes; not at once.
  for (int look = 0; look < 500 && is_cpu_device() && free_after != free_before; ++look) {
    usleep(10'000);
    OK(CU(cuMemGetInfo)(&free_after, &total));
  }
  if (driver_kind() != DriverKind::real) {
    CHECK(address == 77);
    CHECK(pitch == 78);
    if (is_cpu_device()) CHECK(free_after == free_before);
  }
  expect("cuMemAlloc to nowhere", call("cuMemAlloc", static_cast<unsigned*>(nullptr), 4u), CUDA_ERROR_INVALID_VALUE);
  expect("cuMemAlloc of nothing", call("cuMemAlloc", &address, 0u), CUDA_ERROR_INVALID_VALUE);

  unsigned bytes = 0;
  expect("cuModuleGetGlobal", call("cuModuleGetGlobal", &address, &bytes, image.handle(), "counter"), CUDA_ERROR_NOT_SUPPORTED);
  expect("cuModuleGetGlobal of a size", call("cuModuleGetGlobal", static_cast<unsigned*>(nullptr), &bytes, image.handle(), "counter"), CUDA_SUCCESS);
  if (driver_kind() != DriverKind::real) CHECK(bytes == sizeof(int));
  expect("cuModuleGetGlobal of no variable", call("cuModuleGetGlobal", &address, &bytes, image.handle(), "no such variable"), CUDA_ERROR_NOT_FOUND);

  void* memory = nullptr;
  OK(CU(cuMemAllocHost)(&memory, 4096));
  expect("cuMemHostGetDevicePointer", call("cuMemHostGetDevicePointer", &address, memory, 0u), CUDA_ERROR_NOT_SUPPORTED);
  int on_stack = 0;
  expect("cuMemHostGetDevicePointer of other memory", call("cuMemHostGetDevicePointer", &address, static_cast<void*>(&on_stack), 0u),
         CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFreeHost)(memory));
  if (driver_kind() != DriverKind::real) CHECK(address == 77);
}

TEST_CASE("texture references and device addresses of 32 bits", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("asked of the library in front of the CPU driver");
  const DeviceContext context;
  CUtexref texture = nullptr;
  OK(call("cuTexRefCreate", &texture));
  unsigned address = 77, offset = 0;
  expect("cuTexRefGetAddress of none", call("cuTexRefGetAddress", &address, texture), CUDA_ERROR_INVALID_VALUE);
  expect("cuTexRefSetAddress", call("cuTexRefSetAddress", &offset, texture, 0x10'0000u, 4096u), CUDA_ERROR_INVALID_VALUE);
  const struct {
    unsigned width, height;
    CUarray_format format;
    unsigned channels;
  } rows{64, 4, CU_AD_FORMAT_FLOAT, 1};
  expect("cuTexRefSetAddress2D", call("cuTexRefSetAddress2D", texture, &rows, 0x10'0000u, 4096u), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr memory = 0;
  OK(CU(cuMemAlloc)(&memory, 4096));
  size_t wide_offset = 0;
  const CUresult bound = call("cuTexRefSetAddress_v2", &wide_offset, texture, memory, size_t{4096});
  if (bound == CUDA_SUCCESS) expect("cuTexRefGetAddress", call("cuTexRefGetAddress", &address, texture), CUDA_ERROR_NOT_SUPPORTED);
  if (driver_kind() != DriverKind::real) {
    CHECK(bound == CUDA_SUCCESS);
    CHECK(address == 77);
  }
  OK(call("cuTexRefDestroy", texture));
  OK(CU(cuMemFree)(memory));
}
