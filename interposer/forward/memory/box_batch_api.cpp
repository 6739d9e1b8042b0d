// SPDX-License-Identifier: Apache-2.0
// Batches of copies of boxes (CUDA Driver API manual, "Memory Management", cuMemcpy3DBatchAsync): copies of one stream, one after the other, as
// in batch_copy_api.cpp. An operation is read by a layout of its own, since a cuda.h of 12.4 does not have it.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gen/api_declarations.hpp"
#include "interposer/forward/arrays/arrays.hpp"
#include "interposer/forward/memory/box_copy.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

struct Operand {
  std::uint32_t type;  // CUmemcpy3DOperandType
  std::uint32_t padding;
  std::uint64_t object;  // pointer or array
  std::uint64_t first;   // of a pointer: row length; of an array: x
  std::uint64_t second;  // layer height, y
  std::uint64_t third;   // location hint, z
};
struct Operation {
  Operand source;
  Operand destination;
  std::uint64_t width, height, depth;  // elements
  std::uint32_t source_access_order;
  std::uint32_t flags;
};
constexpr std::uint32_t kPointer = 1;
constexpr std::uint32_t kArray = 2;
constexpr std::uint32_t kLastAccessOrder = 3;
#if CUDA_VERSION >= 12080
static_assert(sizeof(Operation) == sizeof(CUDA_MEMCPY3D_BATCH_OP) && sizeof(Operand) == sizeof(CUmemcpy3DOperand));
static_assert(offsetof(Operation, width) == offsetof(CUDA_MEMCPY3D_BATCH_OP, extent));
static_assert(offsetof(Operation, source_access_order) == offsetof(CUDA_MEMCPY3D_BATCH_OP, srcAccessOrder));
static_assert(offsetof(Operand, first) == offsetof(CUmemcpy3DOperand, op.ptr.rowLength));
static_assert(offsetof(Operand, second) == offsetof(CUmemcpy3DOperand, op.array.offset.y));
static_assert(kPointer == CU_MEMCPY_OPERAND_TYPE_POINTER && kArray == CU_MEMCPY_OPERAND_TYPE_ARRAY);
static_assert(kLastAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
#endif

struct BatchSide {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  CUdeviceptr pointer = 0;
  CUarray array = nullptr;
  std::size_t pitch = 0;
  std::size_t rows = 0;
  std::size_t x = 0, y = 0, z = 0;
};

// Bytes of an element, which an array decides; 0: the operand is none.
CUresult element_of(const Operand& operand, std::uint64_t& bytes) {
  if (operand.type == kPointer) return CUDA_SUCCESS;
  if (operand.type != kArray) return CUDA_ERROR_INVALID_VALUE;
  const Array* array = Arrays::instance().resolve(reinterpret_cast<CUarray>(operand.object));  // NOLINT(performance-no-int-to-ptr)
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::uint32_t own = element_bytes(array->descriptor);
  if (own == 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (bytes != 0 && bytes != own) return CUDA_ERROR_INVALID_VALUE;
  bytes = own;
  return CUDA_SUCCESS;
}

CUresult read_side(const Operand& operand, const Operation& operation, std::uint64_t element, BatchSide& side) {
  if (operand.type == kArray) {
    side.type = CU_MEMORYTYPE_ARRAY;
    side.array = reinterpret_cast<CUarray>(operand.object);  // NOLINT(performance-no-int-to-ptr)
    side.y = operand.second;
    side.z = operand.third;
    return __builtin_mul_overflow(operand.first, element, &side.x) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  }
  if (operand.first != 0 && operand.first < operation.width) return CUDA_ERROR_INVALID_VALUE;
  if (operand.second != 0 && operand.second < operation.height) return CUDA_ERROR_INVALID_VALUE;
  side.pointer = operand.object;
  side.rows = operand.second;
  return __builtin_mul_overflow(operand.first, element, &side.pitch) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult read(const Operation& operation, CUDA_MEMCPY3D& copy) {
  if (operation.width == 0 || operation.height == 0 || operation.depth == 0) return CUDA_ERROR_INVALID_VALUE;
  if (operation.source_access_order == 0 || operation.source_access_order > kLastAccessOrder) return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t element = 0;
  if (const CUresult error = element_of(operation.source, element); error != CUDA_SUCCESS) return error;
  if (const CUresult error = element_of(operation.destination, element); error != CUDA_SUCCESS) return error;
  if (element == 0) element = 1;  // between two pointers
  BatchSide from, to;
  if (const CUresult error = read_side(operation.source, operation, element, from); error != CUDA_SUCCESS) return error;
  if (const CUresult error = read_side(operation.destination, operation, element, to); error != CUDA_SUCCESS) return error;
  copy = {};
  copy.srcMemoryType = from.type;
  copy.srcDevice = from.pointer;
  copy.srcArray = from.array;
  copy.srcPitch = from.pitch;
  copy.srcHeight = from.rows;
  copy.srcXInBytes = from.x;
  copy.srcY = from.y;
  copy.srcZ = from.z;
  copy.dstMemoryType = to.type;
  copy.dstDevice = to.pointer;
  copy.dstArray = to.array;
  copy.dstPitch = to.pitch;
  copy.dstHeight = to.rows;
  copy.dstXInBytes = to.x;
  copy.dstY = to.y;
  copy.dstZ = to.z;
  copy.Height = operation.height;
  copy.Depth = operation.depth;
  return __builtin_mul_overflow(operation.width, element, &copy.WidthInBytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult copy_batch(std::size_t count, const void* operations, unsigned long long flags, CUstream handle, std::size_t& failed) {
  failed = SIZE_MAX;  // no single copy is to blame
  if (const CUresult error = begin_on(handle); error != CUDA_SUCCESS) return error;
  if (operations == nullptr || count == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return CUDA_ERROR_INVALID_VALUE;  // as the manual has it
  Stream* stream = Streams::instance().resolve(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (std::size_t i = 0; i < count; ++i) {
    Operation operation;
    std::memcpy(&operation, static_cast<const std::byte*>(operations) + i * sizeof operation, sizeof operation);
    CUDA_MEMCPY3D description;
    CUresult error = read(operation, description);
    if (error == CUDA_SUCCESS) error = copy_volume(*stream, description, Completion::as_posted);
    if (error == CUDA_SUCCESS) continue;
    failed = i;
    return error;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, size_t* failIdx, unsigned long long flags, CUstream hStream) {
  std::size_t failed = SIZE_MAX;
  const CUresult error = copy_batch(numOps, opList, flags, hStream, failed);
  if (failIdx != nullptr && error != CUDA_SUCCESS) *failIdx = failed;
  return error;
}
CUresult cuMemcpy3DBatchAsync_v2(size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, unsigned long long flags, CUstream hStream) {
  std::size_t failed = SIZE_MAX;
  return copy_batch(numOps, opList, flags, hStream, failed);
}

}  // namespace mpsshim::interposer::api
