// SPDX-License-Identifier: Apache-2.0
// Arrays, mipmapped arrays, textures and surfaces: what is made of them, and one-dimensional copies. The CPU driver itself has of all this
// what an executor asks for, so most cases need the library in front of it.
#include <cstring>
#include <numeric>
#include <vector>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

namespace {

CUDA_ARRAY3D_DESCRIPTOR floats(size_t width, size_t height, size_t depth, unsigned flags = 0) {
  return {width, height, depth, CU_AD_FORMAT_FLOAT, 1, flags};
}

CUarray new_array(const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  CUarray array = nullptr;
  OK(CU(cuArray3DCreate)(&array, &descriptor));
  return array;
}

std::vector<float> numbers(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

CUDA_TEXTURE_DESC clamped_points() {
  CUDA_TEXTURE_DESC texture{};
  for (CUaddress_mode& mode : texture.addressMode) mode = CU_TR_ADDRESS_MODE_CLAMP;
  texture.filterMode = CU_TR_FILTER_MODE_POINT;
  texture.maxAnisotropy = 1;
  return texture;
}

}  // namespace

TEST_CASE("an array is described as it was made", "[forwarded]") {
  const DeviceContext context;
  const CUarray volume = new_array(floats(64, 32, 4, CUDA_ARRAY3D_SURFACE_LDST));
  CUDA_ARRAY3D_DESCRIPTOR full{};
  OK(CU(cuArray3DGetDescriptor)(&full, volume));
  CHECK(full.Width == 64);
  CHECK(full.Height == 32);
  CHECK(full.Depth == 4);
  CHECK(full.Format == CU_AD_FORMAT_FLOAT);
  CHECK(full.NumChannels == 1);
  CHECK((full.Flags & CUDA_ARRAY3D_SURFACE_LDST) != 0);
  OK(CU(cuArrayDestroy)(volume));
  const CUDA_ARRAY_DESCRIPTOR flat{100, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4};
  CUarray line = nullptr;
  OK(CU(cuArrayCreate)(&line, &flat));
  CUDA_ARRAY_DESCRIPTOR found{};
  OK(CU(cuArrayGetDescriptor)(&found, line));
  CHECK(found.Width == 100);
  CHECK(found.Height == 0);
  CHECK(found.NumChannels == 4);
  OK(CU(cuArrayDestroy)(line));
  if (refuses_dead_handles()) CHECK(CU(cuArrayGetDescriptor)(&found, line) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("levels of a mipmapped array halve", "[forwarded]") {
  const DeviceContext context;
  const CUDA_ARRAY3D_DESCRIPTOR descriptor = floats(64, 16, 0);
  CUmipmappedArray mipmapped = nullptr;
  OK(CU(cuMipmappedArrayCreate)(&mipmapped, &descriptor, 3));
  for (unsigned i = 0; i < 3; ++i) {
    CUarray level = nullptr;
    OK(CU(cuMipmappedArrayGetLevel)(&level, mipmapped, i));
    CUDA_ARRAY3D_DESCRIPTOR found{};
    OK(CU(cuArray3DGetDescriptor)(&found, level));
    CHECK(found.Width == 64u >> i);
    CHECK(found.Height == 16u >> i);
  }
  CUarray none = nullptr;
  CHECK(CU(cuMipmappedArrayGetLevel)(&none, mipmapped, 3) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMipmappedArrayDestroy)(mipmapped));
}

TEST_CASE("what is copied into an array comes out of it", "[forwarded]") {
  if (driver_kind() == DriverKind::cpu) MPSSHIM_SKIP("the CPU driver has no one-dimensional copies of arrays");
  const DeviceContext context;
  constexpr size_t kCount = 10'000;
  constexpr size_t kBytes = kCount * sizeof(float);
  const std::vector<float> values = numbers(kCount);
  const CUarray first = new_array(floats(kCount, 0, 0));
  const CUarray second = new_array(floats(kCount, 0, 0));
  const DeviceArray<float> memory(kCount);
  OK(CU(cuMemcpyHtoA)(first, 0, values.data(), kBytes));
  std::vector<float> seen(kCount, 0);
  OK(CU(cuMemcpyAtoH)(seen.data(), first, 0, kBytes));
  CHECK(seen == values);
  OK(CU(cuMemcpyAtoA)(second, 400, first, 0, kBytes - 400));
  OK(CU(cuMemcpyAtoD)(memory.address(), second, 400, kBytes - 400));
  CHECK(memory[0] == 1);
  CHECK(memory[kCount - 101] == static_cast<float>(kCount - 100));
  OK(CU(cuMemsetD32)(memory.address(), 0x40000000, kCount));  // 2.0
  OK(CU(cuMemcpyDtoA)(first, 800, memory.address(), 400));
  OK(CU(cuMemcpyAtoH)(seen.data(), first, 0, kBytes));
  CHECK(seen[199] == 200);
  CHECK(seen[200] == 2);
  CHECK(seen[299] == 2);
  CHECK(seen[300] == 301);
  const CUstream stream = new_stream();
  OK(CU(cuMemcpyHtoAAsync)(second, 0, values.data(), kBytes, stream));
  OK(CU(cuMemcpyAtoHAsync)(seen.data(), second, 0, kBytes, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(seen == values);
  CHECK(CU(cuMemcpyHtoA)(first, 4, values.data(), kBytes) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuStreamDestroy)(stream));
  for (const CUarray array : {first, second}) OK(CU(cuArrayDestroy)(array));
}

TEST_CASE("large arrays, from pageable and from pinned memory", "[forwarded]") {
  const DeviceContext context;
  constexpr size_t kWidth = 3000;
  constexpr size_t kHeight = 700;  // 8 MiB: more than one piece
  constexpr size_t kBytes = kWidth * kHeight * sizeof(float);
  const std::vector<float> values = numbers(kWidth * kHeight);
  const CUarray array = new_array(floats(kWidth, kHeight, 0));
  std::vector<float> seen(kWidth * kHeight, 0);
  CUDA_MEMCPY2D up{};
  up.srcMemoryType = CU_MEMORYTYPE_HOST;
  up.srcHost = values.data();
  up.srcPitch = kWidth * sizeof(float);
  up.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  up.dstArray = array;
  up.WidthInBytes = kWidth * sizeof(float);
  up.Height = kHeight;
  OK(CU(cuMemcpy2D)(&up));
  CUDA_MEMCPY2D down{};
  down.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  down.srcArray = array;
  down.dstMemoryType = CU_MEMORYTYPE_HOST;
  down.dstHost = seen.data();
  down.dstPitch = kWidth * sizeof(float);
  down.WidthInBytes = kWidth * sizeof(float);
  down.Height = kHeight;
  OK(CU(cuMemcpy2D)(&down));
  CHECK(seen == values);
  void* pinned = nullptr;
  OK(CU(cuMemHostAlloc)(&pinned, kBytes, 0));
  down.dstHost = pinned;
  OK(CU(cuMemcpy2D)(&down));
  CHECK(std::memcmp(pinned, values.data(), kBytes) == 0);
  OK(CU(cuMemFreeHost)(pinned));
  // Copies of one dimension do not reach past a row.
  if (driver_kind() != DriverKind::cpu) CHECK(CU(cuMemcpyHtoA)(array, 0, values.data(), kBytes) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuArrayDestroy)(array));
}

TEST_CASE("textures and surfaces are what they were made of", "[forwarded]") {
  const DeviceContext context;
  const CUarray array = new_array(floats(64, 64, 0, CUDA_ARRAY3D_SURFACE_LDST));
  const DeviceArray<float> memory(1024);
  CUDA_RESOURCE_DESC of_array{};
  of_array.resType = CU_RESOURCE_TYPE_ARRAY;
  of_array.res.array.hArray = array;
  CUDA_RESOURCE_DESC of_memory{};
  of_memory.resType = CU_RESOURCE_TYPE_LINEAR;
  of_memory.res.linear.devPtr = memory.address();
  of_memory.res.linear.format = CU_AD_FORMAT_FLOAT;
  of_memory.res.linear.numChannels = 1;
  of_memory.res.linear.sizeInBytes = 4096;
  const CUDA_TEXTURE_DESC texture = clamped_points();
  CUtexObject first = 0;
  CUtexObject second = 0;
  CUsurfObject surface = 0;
  OK(CU(cuTexObjectCreate)(&first, &of_array, &texture, nullptr));
  OK(CU(cuTexObjectCreate)(&second, &of_memory, &texture, nullptr));
  OK(CU(cuSurfObjectCreate)(&surface, &of_array));
  CHECK(first != 0);
  CHECK(second != 0);
  CHECK(first != second);
  CHECK(CU(cuSurfObjectCreate)(&surface, &of_memory) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuTexObjectCreate)(&first, nullptr, &texture, nullptr) == CUDA_ERROR_INVALID_VALUE);
  if (driver_kind() != DriverKind::cpu) {
    CUDA_RESOURCE_DESC resource{};
    OK(CU(cuTexObjectGetResourceDesc)(&resource, second));
    CHECK(resource.resType == CU_RESOURCE_TYPE_LINEAR);
    CHECK(resource.res.linear.devPtr == memory.address());
    OK(CU(cuSurfObjectGetResourceDesc)(&resource, surface));
    CHECK(resource.res.array.hArray == array);
    CUDA_TEXTURE_DESC described{};
    OK(CU(cuTexObjectGetTextureDesc)(&described, first));
    CHECK(described.filterMode == CU_TR_FILTER_MODE_POINT);
  }
  OK(CU(cuTexObjectDestroy)(first));
  OK(CU(cuTexObjectDestroy)(second));
  OK(CU(cuSurfObjectDestroy)(surface));
  OK(CU(cuArrayDestroy)(array));
}

TEST_CASE("ending a texture or a surface that is none is no error", "[forwarded]") {
  const DeviceContext context;
  OK(CU(cuSurfObjectDestroy)(0));
  OK(CU(cuTexObjectDestroy)(0));
  // As programs have it that make a surface for some of their volumes only.
  const CUarray array = new_array(floats(8, 8, 8));
  CUDA_RESOURCE_DESC of_array{};
  of_array.resType = CU_RESOURCE_TYPE_ARRAY;
  of_array.res.array.hArray = array;
  const CUDA_TEXTURE_DESC description = clamped_points();
  CUtexObject texture = 0;
  const CUsurfObject surface = 0;
  OK(CU(cuTexObjectCreate)(&texture, &of_array, &description, nullptr));
  OK(CU(cuTexObjectDestroy)(texture));
  OK(CU(cuTexObjectDestroy)(texture));
  OK(CU(cuSurfObjectDestroy)(surface));
  OK(CU(cuArrayDestroy)(array));
  OK(CU(cuTexObjectDestroy)(12345));
  OK(CU(cuSurfObjectDestroy)(12345));
}

TEST_CASE("a texture may be declared longer than the memory that it begins in", "[forwarded]") {
  const DeviceContext context;
  constexpr size_t kBytes = 16u << 20;
  const DeviceArray<float> memory(kBytes / sizeof(float));
  CUDA_RESOURCE_DESC linear{};
  linear.resType = CU_RESOURCE_TYPE_LINEAR;
  linear.res.linear.devPtr = memory.address();
  linear.res.linear.format = CU_AD_FORMAT_FLOAT;
  linear.res.linear.numChannels = 2;
  linear.res.linear.sizeInBytes = kBytes + (256u << 10);
  const CUDA_TEXTURE_DESC points = clamped_points();
  CUtexObject texture = 0;
  OK(CU(cuTexObjectCreate)(&texture, &linear, &points, nullptr));
  OK(CU(cuTexObjectDestroy)(texture));
  linear.res.linear.devPtr = 0;
  CHECK(CU(cuTexObjectCreate)(&texture, &linear, &points, nullptr) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("textures of pinned and of managed memory", "[forwarded]") {
  const DeviceContext context;
  constexpr size_t kBytes = 1u << 20;
  void* pinned = nullptr;
  CUdeviceptr managed = 0;
  OK(CU(cuMemHostAlloc)(&pinned, kBytes, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(CU(cuMemAllocManaged)(&managed, kBytes, CU_MEM_ATTACH_GLOBAL));
  CUdeviceptr of_pinned = 0;
  OK(CU(cuMemHostGetDevicePointer)(&of_pinned, pinned, 0));
  const CUDA_TEXTURE_DESC points = clamped_points();
  for (const CUdeviceptr address : {of_pinned, managed}) {
    CUDA_RESOURCE_DESC linear{};
    linear.resType = CU_RESOURCE_TYPE_LINEAR;
    linear.res.linear.devPtr = address;
    linear.res.linear.format = CU_AD_FORMAT_FLOAT;
    linear.res.linear.numChannels = 1;
    linear.res.linear.sizeInBytes = kBytes;
    CUtexObject texture = 0;
    OK(CU(cuTexObjectCreate)(&texture, &linear, &points, nullptr));
    OK(CU(cuTexObjectDestroy)(texture));
  }
  OK(CU(cuMemFree)(managed));
  OK(CU(cuMemFreeHost)(pinned));
}

TEST_CASE("arrays that are none", "[forwarded]") {
  const DeviceContext context;
  CUarray array = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR empty = floats(0, 0, 0);
  CHECK(CU(cuArray3DCreate)(&array, &empty) == CUDA_ERROR_INVALID_VALUE);
  const CUDA_ARRAY3D_DESCRIPTOR three_channels{16, 0, 0, CU_AD_FORMAT_FLOAT, 3, 0};
  CHECK(CU(cuArray3DCreate)(&array, &three_channels) == CUDA_ERROR_INVALID_VALUE);
  const CUDA_ARRAY3D_DESCRIPTOR small = floats(16, 0, 0);
  CHECK(CU(cuArray3DCreate)(nullptr, &small) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuArray3DCreate)(&array, nullptr) == CUDA_ERROR_INVALID_VALUE);
  if (!refuses_dead_handles()) return;
  CHECK(CU(cuArrayDestroy)(nullptr) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("arrays with memory of their own are neither sparse nor deferred, and of one plane", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("asked of the library in front of the CPU driver");
  const DeviceContext context;
  const CUarray array = new_array(floats(64, 64, 0));
  const CUDA_ARRAY3D_DESCRIPTOR descriptor = floats(64, 64, 0);
  CUmipmappedArray mipmapped = nullptr;
  OK(CU(cuMipmappedArrayCreate)(&mipmapped, &descriptor, 3));
  CUDA_ARRAY_SPARSE_PROPERTIES sparse{};
  CHECK(CU(cuArrayGetSparseProperties)(&sparse, array) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMipmappedArrayGetSparseProperties)(&sparse, mipmapped) == CUDA_ERROR_INVALID_VALUE);
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  CHECK(CU(cuArrayGetMemoryRequirements)(&needs, array, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMipmappedArrayGetMemoryRequirements)(&needs, mipmapped, 0) == CUDA_ERROR_INVALID_VALUE);
  CUarray plane = nullptr;
  CHECK(CU(cuArrayGetPlane)(&plane, array, 0) == (is_cpu_device() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE));  // which has no planes
  OK(CU(cuMipmappedArrayDestroy)(mipmapped));
  OK(CU(cuArrayDestroy)(array));
}

TEST_CASE("a texture's view is the one it was given", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("asked of the library in front of the CPU driver");
  const DeviceContext context;
  const CUarray array = new_array(floats(64, 64, 0));
  CUDA_RESOURCE_DESC of_array{};
  of_array.resType = CU_RESOURCE_TYPE_ARRAY;
  of_array.res.array.hArray = array;
  CUDA_RESOURCE_VIEW_DESC view{};
  view.format = CU_RES_VIEW_FORMAT_UINT_1X32;
  view.width = view.height = 64;
  const CUDA_TEXTURE_DESC texture = clamped_points();
  CUtexObject object = 0;
  OK(CU(cuTexObjectCreate)(&object, &of_array, &texture, &view));
  CUDA_RESOURCE_VIEW_DESC found{};
  OK(CU(cuTexObjectGetResourceViewDesc)(&found, object));
  CHECK(found.format == CU_RES_VIEW_FORMAT_UINT_1X32);
  CHECK((found.width == 64 && found.height == 64));
  OK(CU(cuTexObjectDestroy)(object));
  OK(CU(cuArrayDestroy)(array));
}
