// SPDX-License-Identifier: Apache-2.0
// The ABI of CUDA 3.1 and older under the plain names, as far as it needs no device pointer: those have 32 bits there.
#include <numeric>
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
  OK(call("cuMemAllocHost", &memory, 4096u));
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
  OK(call("cuMemcpy3D", &up));
  OK(call("cuMemcpy3DAsync", &down, CUstream{nullptr}));
  OK(CU(cuStreamSynchronize)(nullptr));
  CHECK(seen == values);
  OK(CU(cuArrayDestroy)(array));
}
