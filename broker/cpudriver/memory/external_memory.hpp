// SPDX-License-Identifier: Apache-2.0
//
// What stands for memory of another interface: a memfd, whose pages are shared with whoever else has it. The descriptor is not trusted: its file is
// sealed against being made shorter, so that no access can end in SIGBUS, and one that cannot be sealed is refused. Mappings outlive the object.
// Any thread; the waits for running kernels are made by the callers (api/).
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

namespace mpsshim::cpudriver {

class ExternalMemory {
 public:
  ExternalMemory(int fd, std::uint64_t size_bytes) : fd_(fd), size_bytes_(size_bytes) {}  // the descriptor is its own
  ~ExternalMemory();
  ExternalMemory(const ExternalMemory&) = delete;
  ExternalMemory& operator=(const ExternalMemory&) = delete;

  // The descriptor stays the caller's unless this is CUDA_SUCCESS; then it is closed. CUDA_ERROR_INVALID_VALUE: it is no such file, or has less
  // behind it.
  static CUresult import(int fd, std::uint64_t size_bytes, std::shared_ptr<ExternalMemory>& memory);
  // `offset` is that of a page.
  CUresult map(std::uint64_t offset, std::uint64_t size_bytes, std::uint64_t& address) const;
  // CUDA_ERROR_INVALID_VALUE: nothing of this kind begins there.
  static CUresult unmap(std::uint64_t address);

  std::uint64_t size_bytes() const { return size_bytes_; }

 private:
  const int fd_;
  const std::uint64_t size_bytes_;
};

}  // namespace mpsshim::cpudriver
