// SPDX-License-Identifier: Apache-2.0
// Stream memory operations (CUDA Driver API manual, "Stream Memory Operations"). A batch is posted one by one: its operations are in stream
// order anyway, which is all that a barrier among them asks for.
#include "interposer/forward/stream_memory_ops.hpp"

#include "gen/api_declarations.hpp"
#include "interposer/forward/graphs/capture.hpp"
#include "interposer/forward/graphs/node_work.hpp"
#include "interposer/forward/memory/copy.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::forward {

namespace {

CUresult check_word(CUdeviceptr address, std::uint64_t bytes) {
  if (address % bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  Space space{};
  if (const CUresult error = classify_fixed(address, bytes, Named::by_address, space); error != CUDA_SUCCESS) return error;
  return space == Space::pageable ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

bool has_attribute(CUdevice_attribute attribute) {
  int value = 0;
  const proto::DeviceFacts* facts = device_facts(session_device());
  return facts != nullptr && device_attribute(*facts, attribute, value) == CUDA_SUCCESS && value != 0;
}

CUresult check(const CUstreamBatchMemOpParams& operation) {
  switch (static_cast<int>(operation.operation)) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: {
      const unsigned int flags = operation.waitValue.flags;
      if ((flags & CU_STREAM_WAIT_VALUE_FLUSH) != 0 && !has_attribute(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES)) return CUDA_ERROR_NOT_SUPPORTED;
      if ((flags & ~static_cast<unsigned int>(CU_STREAM_WAIT_VALUE_FLUSH)) > CU_STREAM_WAIT_VALUE_NOR) return CUDA_ERROR_INVALID_VALUE;
      return check_word(operation.waitValue.address, operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? 4 : 8);
    }
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      // CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER belongs to the first version of these calls.
      if (operation.writeValue.flags != CU_STREAM_WRITE_VALUE_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
      return check_word(operation.writeValue.address, operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ? 4 : 8);
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      return has_attribute(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
    case CU_STREAM_MEM_OP_BARRIER: return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult post_write(Stream& stream, const proto::StreamWriteValueRecord& content) {
  return post_work<proto::StreamWriteValueRecord>(stream, 0, [&](proto::StreamWriteValueRecord& record, std::byte*) { record = content; });
}

CUresult post_wait(Stream& stream, const CUstreamBatchMemOpParams& operation) {
  const bool is_short = operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32;
  const unsigned int flags = operation.waitValue.flags;
  const CUresult error = post_work<proto::StreamWaitValueRecord>(stream, 0, [&](proto::StreamWaitValueRecord& record, std::byte*) {
    record.address = operation.waitValue.address;
    record.value = is_short ? operation.waitValue.value : operation.waitValue.value64;
    record.size_bytes = is_short ? 4 : 8;
    record.condition = flags & ~static_cast<unsigned int>(CU_STREAM_WAIT_VALUE_FLUSH);
  });
  if (error != CUDA_SUCCESS || (flags & CU_STREAM_WAIT_VALUE_FLUSH) == 0) return error;
  return post_write(stream, {0, 0, proto::StreamWrite::remote_flush, 0});
}

CUresult post(Stream& stream, const CUstreamBatchMemOpParams& operation) {
  switch (static_cast<int>(operation.operation)) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: return post_wait(stream, operation);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return post_write(stream, {operation.writeValue.address, operation.writeValue.value, proto::StreamWrite::value_32, operation.writeValue.flags});
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return post_write(stream,
                        {operation.writeValue.address, operation.writeValue.value64, proto::StreamWrite::value_64, operation.writeValue.flags});
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: return post_write(stream, {0, 0, proto::StreamWrite::remote_flush, 0});
    default: return CUDA_SUCCESS;  // a barrier
  }
}

}  // namespace

CUresult check_memory_operations(std::span<const CUstreamBatchMemOpParams> operations) {
  for (const CUstreamBatchMemOpParams& operation : operations) {
    if (const CUresult error = check(operation); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult post_memory_operations(Stream& stream, std::span<const CUstreamBatchMemOpParams> operations) {
  for (const CUstreamBatchMemOpParams& operation : operations) {
    if (const CUresult error = post(stream, operation); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::forward

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

CUresult post_all(CUstream handle, std::span<const CUstreamBatchMemOpParams> operations) {
  if (const CUresult error = begin_on(handle); error != CUDA_SUCCESS) return error;
  Stream* stream = Streams::instance().resolve(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult error = check_memory_operations(operations); error != CUDA_SUCCESS) return error;
  if (!stream->is_captured.load(std::memory_order_relaxed)) return post_memory_operations(*stream, operations);
  return Captures::instance().add(*stream, make_memory_operations_work(operations));
}

// 32-bit values lie in the lower half of the 64-bit ones.
CUresult wait_for(CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = type;
  operation.waitValue.address = address;
  operation.waitValue.value64 = value;
  operation.waitValue.flags = flags;
  return post_all(stream, {&operation, 1});
}

CUresult write_to(CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.operation = type;
  operation.writeValue.address = address;
  operation.writeValue.value64 = value;
  operation.writeValue.flags = flags;
  return post_all(stream, {&operation, 1});
}

}  // namespace

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
  return wait_for(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, value, flags);
}
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
  return wait_for(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags);
}
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
  return write_to(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value, flags);
}
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
  return write_to(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags);
}
CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  if (flags != 0 || count == 0 || count > kMostMemoryOperations || paramArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return post_all(stream, {paramArray, count});
}

}  // namespace mpsshim::interposer::api
