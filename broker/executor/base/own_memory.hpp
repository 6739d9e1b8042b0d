// SPDX-License-Identifier: Apache-2.0
// The executor's own memory as the GPU sees it. Nothing of it can be made from a number: host memory is a mapping that is there, and words are
// made by who has the memory they lie in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "broker/driver/driver.hpp"

namespace mpsshim::broker {

// Registers mapped host memory with the driver.
class OwnMemory {
 public:
  // `device`: its address on the GPU. On an error it is not registered, but where `is_registered` says so.
  [[nodiscard]] static CUresult enroll(const Driver& driver, std::span<std::byte> memory, unsigned flags, CUdeviceptr& device, bool& is_registered) {
    CUresult result = driver->cuMemHostRegister_v2(AddressKey(), memory.data(), memory.size(), flags);
    is_registered = result == CUDA_SUCCESS;
    return is_registered ? driver->cuMemHostGetDevicePointer_v2(AddressKey(), &device, memory.data(), 0) : result;
  }
  // Waits for every running kernel: in a quiet window.
  static void dismiss(const Driver& driver, std::byte* memory) { driver->cuMemHostUnregister(AddressKey(), memory); }
};

// A word of 32 bits that the GPU writes for the executor: progress, or a client's fence.
class OwnWord {
 public:
  OwnWord() = default;  // none
  [[nodiscard]] explicit operator bool() const { return address_ != 0; }
  [[nodiscard]] CUdeviceptr address() const { return address_; }

  // In stream order.
  [[nodiscard]] CUresult write(const Driver& driver, CUstream stream, std::uint32_t value) const {
    return driver->cuStreamWriteValue32_v2(AddressKey(), stream, address_, value, CU_STREAM_WRITE_VALUE_DEFAULT);
  }
  // This one, then `second`, in one operation.
  [[nodiscard]] CUresult write_with(const Driver& driver, CUstream stream, std::uint32_t value, OwnWord second, std::uint32_t second_value) const {
    CUstreamBatchMemOpParams writes[2] = {};
    for (CUstreamBatchMemOpParams& one : writes) one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    writes[0].writeValue.address = address_;
    writes[0].writeValue.value = value;
    writes[1].writeValue.address = second.address_;
    writes[1].writeValue.value = second_value;
    return driver->cuStreamBatchMemOp_v2(AddressKey(), stream, 2, writes, 0);
  }
  // Holds up the stream, and what stands behind it in its hardware connection, until the word is `value` or more.
  [[nodiscard]] CUresult await(const Driver& driver, CUstream stream, std::uint32_t value) const {
    CUstreamBatchMemOpParams wait{};
    wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait.waitValue.address = address_;
    wait.waitValue.value = value;
    wait.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    return driver->cuStreamBatchMemOp_v2(AddressKey(), stream, 1, &wait, 0);
  }

 private:
  friend class Progress;
  friend class ClientChannel;
  explicit OwnWord(CUdeviceptr address) : address_(address) {}

  CUdeviceptr address_ = 0;
};
static_assert(sizeof(OwnWord) == sizeof(CUdeviceptr));  // kernels are given it as it is

}  // namespace mpsshim::broker
