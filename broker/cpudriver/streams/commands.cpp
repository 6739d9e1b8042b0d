// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/streams/commands.hpp"

#include <algorithm>
#include <cstring>

#include "broker/cpudriver/memory/memory_map.hpp"

namespace mpsshim::cpudriver {
namespace {

constexpr std::size_t kInstantBytes = 64 * 1024;  // copied sooner than a worker wakes

std::byte* at(const BoxPlace& place, std::size_t row, std::size_t slice) {
  return reinterpret_cast<std::byte*>(place.address + slice * place.slice_pitch + row * place.row_pitch);
}

bool is_usable(const BoxPlace& place, const Box& box, bool for_writing) {
  std::size_t bytes = 0;
  if (!place.span_of(box, bytes)) return false;
  if (!place.is_device) return place.address != 0;
  return MemoryMap::get().is_accessible(place.address, bytes, for_writing);
}

template <class T>
void fill_row(std::byte* row, std::size_t width, std::uint32_t value) {
  std::fill_n(reinterpret_cast<T*>(row), width / sizeof(T), static_cast<T>(value));
}

}  // namespace

bool BoxPlace::span_of(const Box& box, std::size_t& bytes) const {
  std::size_t rows = 0;
  std::size_t slices = 0;
  return !__builtin_mul_overflow(box.height - 1, row_pitch, &rows) &&
         !__builtin_mul_overflow(box.depth - 1, slice_pitch, &slices) && !__builtin_add_overflow(rows, slices, &bytes) &&
         !__builtin_add_overflow(bytes, box.width, &bytes) && address + bytes >= address;
}

Copy Copy::linear(std::uint64_t destination, std::uint64_t source, std::size_t bytes) {
  const MemoryMap& map = MemoryMap::get();
  Copy copy;
  copy.box.width = bytes;
  copy.destination = {.address = destination, .is_device = map.containing(destination).has_value()};
  copy.source = {.address = source, .is_device = map.containing(source).has_value()};
  return copy;
}

CUresult Copy::check() const {
  if (box.is_empty()) return CUDA_SUCCESS;
  return is_usable(destination, box, true) && is_usable(source, box, false) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Copy::run() const {
  const Scheduler::Activity activity(Scheduler::get());
  if (check() != CUDA_SUCCESS) return CUDA_ERROR_ILLEGAL_ADDRESS;
  if (box.is_empty()) return CUDA_SUCCESS;
  for (std::size_t slice = 0; slice < box.depth; ++slice) {
    for (std::size_t row = 0; row < box.height; ++row) {
      std::memmove(at(destination, row, slice), at(source, row, slice), box.width);
    }
  }
  return CUDA_SUCCESS;
}

CUresult Fill::check() const {
  if (box.is_empty()) return CUDA_SUCCESS;
  if (destination.address % element_size != 0) return CUDA_ERROR_INVALID_VALUE;
  if (box.height > 1 && destination.row_pitch % element_size != 0) return CUDA_ERROR_INVALID_VALUE;
  return is_usable(destination, box, true) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Fill::run() const {
  const Scheduler::Activity activity(Scheduler::get());
  if (check() != CUDA_SUCCESS) return CUDA_ERROR_ILLEGAL_ADDRESS;
  for (std::size_t row = 0; row < box.height && !box.is_empty(); ++row) {
    std::byte* const first = at(destination, row, 0);
    if (element_size == 1) {
      std::memset(first, static_cast<int>(value & 0xff), box.width);
    } else if (element_size == 2) {
      fill_row<std::uint16_t>(first, box.width, value);
    } else {
      fill_row<std::uint32_t>(first, box.width, value);
    }
  }
  return CUDA_SUCCESS;
}

namespace {

bool is_wait(CUstreamBatchMemOpType type) {
  return type == CU_STREAM_MEM_OP_WAIT_VALUE_32 || type == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

bool is_write(CUstreamBatchMemOpType type) {
  return type == CU_STREAM_MEM_OP_WRITE_VALUE_32 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

bool is_usable(std::uint64_t address, std::size_t size, bool for_writing) {
  return address % size == 0 && MemoryMap::get().is_accessible(address, size, for_writing);
}

std::size_t size_of(CUstreamBatchMemOpType type) {
  return type == CU_STREAM_MEM_OP_WAIT_VALUE_64 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64 ? 8 : 4;
}

template <class T>
bool is_satisfied(T found, T wanted, unsigned flags) {
  switch (flags & 0x3) {
    case CU_STREAM_WAIT_VALUE_EQ:
      return found == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
      return (found & wanted) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
      return static_cast<T>(~(found | wanted)) != 0;
    default:  // GEQ, cyclic: values may wrap around
      return static_cast<std::make_signed_t<T>>(found - wanted) >= 0;
  }
}

// Acquire and release pair with whoever writes or polls these words: host threads, kernels, other streams.
template <class T>
bool has_value(std::uint64_t address, T wanted, unsigned flags) {
  return is_satisfied(__atomic_load_n(reinterpret_cast<T*>(address), __ATOMIC_ACQUIRE), wanted, flags);
}

CUresult check_one(const CUstreamBatchMemOpParams& operation) {
  const auto type = operation.operation;
  if (is_wait(type)) {
    const auto& wait = operation.waitValue;
    if ((wait.flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)) != 0) return CUDA_ERROR_INVALID_VALUE;
    return is_usable(wait.address, size_of(type), false) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (is_write(type)) {
    const auto& write = operation.writeValue;
    if (write.flags != CU_STREAM_WRITE_VALUE_DEFAULT) return CUDA_ERROR_INVALID_VALUE;  // the other flag is the first version's
    return is_usable(write.address, size_of(type), true) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  const bool is_fence = type == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES || type == CU_STREAM_MEM_OP_BARRIER;
  return is_fence ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult run_one(const CUstreamBatchMemOpParams& operation) {
  const Scheduler::Activity activity(Scheduler::get());
  if (check_one(operation) != CUDA_SUCCESS) return CUDA_ERROR_ILLEGAL_ADDRESS;
  const auto& wait = operation.waitValue;
  const auto& write = operation.writeValue;
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return has_value<std::uint32_t>(wait.address, wait.value, wait.flags) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return has_value<std::uint64_t>(wait.address, wait.value64, wait.flags) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      __atomic_store_n(reinterpret_cast<std::uint32_t*>(write.address), write.value, __ATOMIC_RELEASE);
      return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      __atomic_store_n(reinterpret_cast<std::uint64_t*>(write.address), write.value64, __ATOMIC_RELEASE);
      return CUDA_SUCCESS;
    default:  // fences: all memory is coherent here
      __atomic_thread_fence(__ATOMIC_SEQ_CST);
      return CUDA_SUCCESS;
  }
}

}  // namespace

CUresult MemoryOperations::check(unsigned count, const CUstreamBatchMemOpParams* operations) {
  if (count > kMaxOperations || (count != 0 && operations == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  const bool all_good = std::all_of(operations, operations + count,
                                    [](const auto& operation) { return check_one(operation) == CUDA_SUCCESS; });
  return all_good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

MemoryOperations::MemoryOperations(unsigned count, const CUstreamBatchMemOpParams* operations)
    : operations_(operations, operations + count) {}

CUresult MemoryOperations::run() {
  for (; next_ < operations_.size(); ++next_) {
    const CUresult result = run_one(operations_[next_]);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

bool MemoryOperations::may_wait() const {
  return std::any_of(operations_.begin(), operations_.end(), [](const auto& operation) { return is_wait(operation.operation); });
}

Operation as_operation(const Copy& copy) {
  Operation operation;
  operation.is_instant = copy.box.width * copy.box.height * copy.box.depth <= kInstantBytes;
  operation.run = [copy] { return copy.run(); };
  return operation;
}

Operation as_operation(const Fill& fill) {
  Operation operation;
  operation.is_instant = fill.box.width * fill.box.height <= kInstantBytes;
  operation.run = [fill] { return fill.run(); };
  return operation;
}

Operation as_operation(MemoryOperations operations) {
  Operation operation;
  operation.is_instant = true;  // one that must wait is handed to a worker when it says so
  operation.run = [state = std::make_shared<MemoryOperations>(std::move(operations))] { return state->run(); };
  return operation;
}

}  // namespace mpsshim::cpudriver
