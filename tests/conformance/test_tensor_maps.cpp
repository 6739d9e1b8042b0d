// SPDX-License-Identifier: Apache-2.0
// cuTensorMap*. Maps are opaque: what can be seen is which arguments are taken, and that equal questions have equal answers.
#include <cstring>

#include "loaded_image.hpp"

using namespace mpsshim::test;

namespace {

bool device_has_tensor_maps() {
  int major = 0;
  OK(CU(cuDeviceGetAttribute)(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  return major >= 9 || is_cpu_device();
}

// A valid question, of which each case changes one part.
struct Tiled {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  cuuint32_t rank = 2;
  CUdeviceptr address = 0;
  cuuint64_t dimensions[5] = {256, 128, 4, 2, 2};
  cuuint64_t strides[4] = {512, 512 * 128, 512 * 128 * 4, 512 * 128 * 8};
  cuuint32_t box[5] = {64, 64, 1, 1, 1};
  cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;

  CUresult encode(CUtensorMap* map) const {
    return CU(cuTensorMapEncodeTiled)(map, type, rank, reinterpret_cast<void*>(address), dimensions, strides, box, element_strides, interleave,
                                      swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  }
};

bool are_equal(const CUtensorMap& a, const CUtensorMap& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

TEST_CASE("a tensor map depends on the question alone", "[forwarded]") {
  const DeviceContext context;
  if (!device_has_tensor_maps()) MPSSHIM_SKIP("the device is older than tensor maps");
  const DeviceArray<char> memory(1 << 20);
  Tiled tiled;
  tiled.address = memory.address();
  CUtensorMap first{}, again{}, other{};
  OK(tiled.encode(&first));
  OK(tiled.encode(&again));
  CHECK(are_equal(first, again));
  CHECK(!are_equal(first, CUtensorMap{}));
  tiled.box[1] = 32;
  OK(tiled.encode(&other));
  CHECK(!are_equal(first, other));
  tiled.box[1] = 64;
  tiled.address += 1024;
  OK(tiled.encode(&other));
  CHECK(!are_equal(first, other));
  OK(CU(cuTensorMapReplaceAddress)(&other, reinterpret_cast<void*>(memory.address())));
  CHECK(are_equal(first, other));
}

TEST_CASE("tensor maps of every rank, and im2col", "[forwarded]") {
  const DeviceContext context;
  if (!device_has_tensor_maps()) MPSSHIM_SKIP("the device is older than tensor maps");
  const DeviceArray<char> memory(1 << 20);
  Tiled tiled;
  tiled.address = memory.address();
  CUtensorMap map{};
  for (tiled.rank = 1; tiled.rank <= 5; ++tiled.rank) {
    INFO("rank " << tiled.rank);
    OK(tiled.encode(&map));
  }
  const cuuint64_t dimensions[] = {64, 16, 16, 2};
  const cuuint64_t strides[] = {128, 128 * 16, 128 * 256};
  const int lower[] = {-1, -1};
  const int upper[] = {-1, -1};
  const cuuint32_t element_strides[] = {1, 1, 1, 1};
  const auto im2col = [&](const int* lower_corner, cuuint32_t rank) {
    return CU(cuTensorMapEncodeIm2col)(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, reinterpret_cast<void*>(memory.address()), dimensions, strides,
                                       lower_corner, upper, 64, 64, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                       CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  OK(im2col(lower, 4));
  if (driver_kind() != DriverKind::real) CHECK(im2col(nullptr, 4) == CUDA_ERROR_INVALID_VALUE);  // which does not look
  CHECK(im2col(lower, 2) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("tensor maps that cannot be", "[forwarded]") {
  const DeviceContext context;
  if (!device_has_tensor_maps()) MPSSHIM_SKIP("the device is older than tensor maps");
  const DeviceArray<char> memory(1 << 20);
  Tiled valid;
  valid.address = memory.address();
  CUtensorMap maps[2]{};
  OK(valid.encode(&maps[0]));
  const auto refuses = [&](auto&& change) {
    Tiled changed = valid;
    change(changed);
    return changed.encode(&maps[0]) == CUDA_ERROR_INVALID_VALUE;
  };
  CHECK(valid.encode(nullptr) == CUDA_ERROR_INVALID_VALUE);
  OK(valid.encode(reinterpret_cast<CUtensorMap*>(reinterpret_cast<char*>(maps) + 32)));  // kernels alone ask for 64
  CHECK(refuses([](Tiled& t) { t.rank = 0; }));
  CHECK(refuses([](Tiled& t) { t.rank = 6; }));
  CHECK(refuses([](Tiled& t) { t.address += 8; }));
  CHECK(refuses([](Tiled& t) { t.dimensions[1] = 0; }));
  CHECK(refuses([](Tiled& t) { t.dimensions[1] = (cuuint64_t{1} << 32) + 1; }));
  CHECK(refuses([](Tiled& t) { t.strides[0] = 24; }));
  CHECK(refuses([](Tiled& t) { t.strides[0] = cuuint64_t{1} << 40; }));
  CHECK(refuses([](Tiled& t) { t.box[1] = 257; }));
  CHECK(refuses([](Tiled& t) { t.box[0] = 0; }));
  CHECK(refuses([](Tiled& t) { t.box[0] = 128; }));  // 256 bytes: more than the swizzle spans
  CHECK(refuses([](Tiled& t) { t.element_strides[1] = 9; }));
  CHECK(refuses([](Tiled& t) {
    const unsigned no_type = 999;
    std::memcpy(&t.type, &no_type, sizeof t.type);
  }));
  CHECK(CU(cuTensorMapReplaceAddress)(&maps[0], reinterpret_cast<void*>(memory.address() + 8)) == CUDA_ERROR_INVALID_VALUE);
  if (driver_kind() == DriverKind::real) return;  // which does not look
  CHECK(CU(cuTensorMapReplaceAddress)(nullptr, reinterpret_cast<void*>(memory.address())) == CUDA_ERROR_INVALID_VALUE);
}

#if CUDA_VERSION >= 12080
TEST_CASE("tensor maps of wide im2col boxes", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver does not make them");
  const DeviceContext context;
  int major = 0;
  OK(CU(cuDeviceGetAttribute)(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  if (major < 10) MPSSHIM_SKIP("the device is older than wide im2col boxes");
  const DeviceArray<char> memory(1 << 20);
  const cuuint64_t dimensions[] = {64, 16, 16, 2};
  const cuuint64_t strides[] = {128, 128 * 16, 128 * 256};
  const cuuint32_t element_strides[] = {1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result =
      CU(cuTensorMapEncodeIm2colWide)(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, reinterpret_cast<void*>(memory.address()), dimensions, strides, -1,
                                      -1, 64, 64, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W,
                                      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS);
}
#endif
