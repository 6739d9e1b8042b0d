// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual, "Tensor Map Object Management": the checks that it states, and an encoding of our own, since the engine has no
// instruction that reads a map. The address lies in the first word.
#include <cstdint>
#include <cstring>

#include "broker/cpudriver/api/entry.hpp"

using namespace mpsshim::cpudriver;

namespace {

constexpr cuuint32_t kMaxRank = 5;
constexpr cuuint32_t kMaxBox = 256;
constexpr cuuint32_t kMaxElementStride = 8;
constexpr cuuint64_t kMaxDimension = cuuint64_t{1} << 32;
constexpr cuuint64_t kMaxStride = cuuint64_t{1} << 40;
constexpr std::uint32_t kMagic = 0x70616d74;  // "tmap"

struct Encoded {
  std::uint64_t address;
  std::uint32_t magic;
  std::uint32_t rank_and_type;
  std::uint64_t digest;  // of everything else
};
static_assert(sizeof(Encoded) <= sizeof(CUtensorMap));

std::uint32_t element_bytes(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ: return 4;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 8;
    default: return 0;
  }
}

struct Tensor {
  CUtensorMapDataType type;
  cuuint32_t rank;
  std::uint64_t address;
  const cuuint64_t* dimensions;
  const cuuint64_t* strides;
  const cuuint32_t* element_strides;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
};

bool is_valid(const Tensor& tensor) {
  const bool interleaves = tensor.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE;
  if (element_bytes(tensor.type) == 0 || tensor.rank == 0 || tensor.rank > kMaxRank || (interleaves && tensor.rank < 3)) return false;
  if (tensor.dimensions == nullptr || tensor.element_strides == nullptr || (tensor.strides == nullptr && tensor.rank > 1)) return false;
  const std::uint64_t alignment = tensor.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
  if (tensor.address % alignment != 0) return false;
  for (cuuint32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.dimensions[i] == 0 || tensor.dimensions[i] > kMaxDimension) return false;
    if (tensor.element_strides[i] == 0 || tensor.element_strides[i] > kMaxElementStride) return false;
    if (i + 1 < tensor.rank && (tensor.strides[i] % alignment != 0 || tensor.strides[i] >= kMaxStride)) return false;
  }
  return true;
}

bool is_valid_box(const Tensor& tensor, const cuuint32_t* box) {
  if (box == nullptr) return false;
  for (cuuint32_t i = 0; i < tensor.rank; ++i) {
    if (box[i] == 0 || box[i] > kMaxBox) return false;
  }
  if (tensor.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) return true;
  const cuuint32_t inner_bytes = box[0] * element_bytes(tensor.type);
  switch (tensor.swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_32B: return inner_bytes % 16 == 0 && inner_bytes <= 32;
    case CU_TENSOR_MAP_SWIZZLE_64B: return inner_bytes % 16 == 0 && inner_bytes <= 64;
    case CU_TENSOR_MAP_SWIZZLE_128B: return inner_bytes % 16 == 0 && inner_bytes <= 128;
    default: return inner_bytes % 16 == 0;
  }
}

void mix(std::uint64_t& digest, std::uint64_t value) { digest = (digest ^ value) * 0x100000001b3ull; }

CUresult write(CUtensorMap* map, const Tensor& tensor, std::uint64_t digest) {
  for (cuuint32_t i = 0; i < tensor.rank; ++i) {
    mix(digest, tensor.dimensions[i]);
    mix(digest, tensor.element_strides[i]);
    if (i + 1 < tensor.rank) mix(digest, tensor.strides[i]);
  }
  mix(digest, static_cast<std::uint64_t>(tensor.interleave) << 32 | static_cast<std::uint64_t>(tensor.swizzle));
  const Encoded encoded{tensor.address, kMagic, tensor.rank << 16 | static_cast<std::uint32_t>(tensor.type), digest};
  std::memset(static_cast<void*>(map), 0, sizeof *map);  // which may lie anywhere, whatever its type says
  std::memcpy(static_cast<void*>(map), &encoded, sizeof encoded);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank, void* globalAddress,
                                        const cuuint64_t* globalDim, const cuuint64_t* globalStrides, const cuuint32_t* boxDim,
                                        const cuuint32_t* elementStrides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                        CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill) {
  return entry(Needs::initialised, [&] {
    const Tensor tensor{tensorDataType, tensorRank, reinterpret_cast<std::uint64_t>(globalAddress), globalDim, globalStrides, elementStrides,
                        interleave,     swizzle};
    if (tensorMap == nullptr || !is_valid(tensor) || !is_valid_box(tensor, boxDim)) return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t digest = 1;
    for (cuuint32_t i = 0; i < tensorRank; ++i) mix(digest, boxDim[i]);
    mix(digest, static_cast<std::uint64_t>(l2Promotion) << 32 | static_cast<std::uint64_t>(oobFill));
    return write(tensorMap, tensor, digest);
  });
}

CUresult CUDAAPI cuTensorMapEncodeIm2col(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank, void* globalAddress,
                                         const cuuint64_t* globalDim, const cuuint64_t* globalStrides, const int* pixelBoxLowerCorner,
                                         const int* pixelBoxUpperCorner, cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
                                         const cuuint32_t* elementStrides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                         CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill) {
  return entry(Needs::initialised, [&] {
    const Tensor tensor{tensorDataType, tensorRank, reinterpret_cast<std::uint64_t>(globalAddress), globalDim, globalStrides, elementStrides,
                        interleave,     swizzle};
    if (tensorMap == nullptr || !is_valid(tensor) || tensorRank < 3) return CUDA_ERROR_INVALID_VALUE;
    if (pixelBoxLowerCorner == nullptr || pixelBoxUpperCorner == nullptr || channelsPerPixel > 256 || pixelsPerColumn > 1024) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::uint64_t digest = 2;
    for (cuuint32_t i = 0; i + 2 < tensorRank; ++i) {
      mix(digest, static_cast<std::uint64_t>(pixelBoxLowerCorner[i]));
      mix(digest, static_cast<std::uint64_t>(pixelBoxUpperCorner[i]));
    }
    mix(digest, static_cast<std::uint64_t>(channelsPerPixel) << 32 | pixelsPerColumn);
    mix(digest, static_cast<std::uint64_t>(l2Promotion) << 32 | static_cast<std::uint64_t>(oobFill));
    return write(tensorMap, tensor, digest);
  });
}

CUresult CUDAAPI cuTensorMapReplaceAddress(CUtensorMap* tensorMap, void* globalAddress) {
  return entry(Needs::initialised, [&] {
    Encoded encoded;
    if (tensorMap == nullptr || reinterpret_cast<std::uint64_t>(globalAddress) % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(&encoded, tensorMap, sizeof encoded);
    if (encoded.magic != kMagic) return CUDA_ERROR_INVALID_VALUE;
    encoded.address = reinterpret_cast<std::uint64_t>(globalAddress);
    std::memcpy(tensorMap, &encoded, sizeof encoded);
    return CUDA_SUCCESS;
  });
}
