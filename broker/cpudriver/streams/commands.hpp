// SPDX-License-Identifier: Apache-2.0
//
// What streams do besides kernels: copies, fills, memory operations. Each is a small value that is checked when it is
// made (CUDA_ERROR_INVALID_VALUE) and again when it runs, because memory may have gone meanwhile
// (CUDA_ERROR_ILLEGAL_ADDRESS, which ends the context as on a GPU).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "broker/cpudriver/streams/scheduler.hpp"

namespace mpsshim::cpudriver {

// A box of bytes: `width` bytes a row, `height` rows a slice, `depth` slices.
struct Box {
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t depth = 1;

  bool is_empty() const { return width == 0 || height == 0 || depth == 0; }
};

// Where a box lies. Device memory is checked against MemoryMap, other memory is the caller's word.
struct BoxPlace {
  std::uint64_t address = 0;
  std::size_t row_pitch = 0;
  std::size_t slice_pitch = 0;
  bool is_device = false;

  // Bytes from the first to the last of the box; false if that is more than an address can say.
  bool span_of(const Box& box, std::size_t& bytes) const;
};

struct Copy {
  Box box;
  BoxPlace destination;
  BoxPlace source;

  // One row of `bytes`, both sides classified by MemoryMap.
  static Copy linear(std::uint64_t destination, std::uint64_t source, std::size_t bytes);
  CUresult check() const;
  CUresult run() const;
};

struct Fill {
  Box box;  // width in bytes
  BoxPlace destination;
  std::uint32_t value = 0;
  unsigned element_size = 1;  // 1, 2 or 4

  CUresult check() const;
  CUresult run() const;
};

// A batch as cuStreamBatchMemOp takes it, and one operation of the single calls.
class MemoryOperations {
 public:
  static constexpr unsigned kMaxOperations = 255;  // "must be less than 256"

  static CUresult check(unsigned count, const CUstreamBatchMemOpParams* operations);
  MemoryOperations(unsigned count, const CUstreamBatchMemOpParams* operations);

  // Goes on where it stopped; CUDA_ERROR_NOT_READY while a value is not there yet.
  CUresult run();
  bool may_wait() const;

 private:
  std::vector<CUstreamBatchMemOpParams> operations_;
  std::size_t next_ = 0;
};

Operation as_operation(const Copy& copy);
Operation as_operation(const Fill& fill);
Operation as_operation(MemoryOperations operations);

}  // namespace mpsshim::cpudriver
