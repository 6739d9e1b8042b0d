// SPDX-License-Identifier: Apache-2.0
// What textures, surfaces and references read, and what is mapped of external memory: as checked_types.hpp has it, made by CheckedMemory alone, and
// not looked up or checked again. Values without a thread of their own; external memory stays imported as long as one of them names it.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "broker/driver/driver.hpp"
#include "broker/executor/memory/checked_types.hpp"
#include "broker/executor/memory/external_memory.hpp"

namespace mpsshim::broker {

// What a texture or a surface reads. Linear memory begins in what is the session's and ends in its lease at the latest: natively the driver does
// not ask where a texture ends either, and a kernel that fetches may as well load.
class CheckedResource {
 public:
  [[nodiscard]] const CUDA_RESOURCE_DESC& description() const { return description_; }

 private:
  friend class CheckedMemory;
  explicit CheckedResource(const CUDA_RESOURCE_DESC& description) : description_(description) {}

  CUDA_RESOURCE_DESC description_;
};

// A buffer of external memory: it lies in what was imported, to its last byte.
class CheckedExternalBuffer {
 public:
  [[nodiscard]] const ImportedMemoryRef& memory() const { return memory_; }
  [[nodiscard]] std::uint64_t offset() const { return offset_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }

 private:
  friend class CheckedMemory;
  CheckedExternalBuffer(ImportedMemoryRef memory, std::uint64_t offset, std::uint64_t size_bytes)
      : memory_(std::move(memory)), offset_(offset), size_bytes_(size_bytes) {}

  ImportedMemoryRef memory_;
  std::uint64_t offset_;
  std::uint64_t size_bytes_;
};

// A mipmapped array of external memory. It begins in what was imported, and what its levels hold at least fits behind that; how the driver lays
// them out, and whether that fits as well, it alone knows.
class CheckedExternalArray {
 public:
  [[nodiscard]] const ImportedMemoryRef& memory() const { return memory_; }
  [[nodiscard]] const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC& description() const { return description_; }

 private:
  friend class CheckedMemory;
  CheckedExternalArray(ImportedMemoryRef memory, const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC& description)
      : memory_(std::move(memory)), description_(description) {}

  ImportedMemoryRef memory_;
  CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC description_;
};

// What a texture or surface reference is bound to. Rows: as CUDA_ARRAY_DESCRIPTOR tells them, `pitch` bytes apart.
class CheckedBinding {
 public:
  CheckedBinding() = default;  // nothing
  [[nodiscard]] const CheckedRange* linear() const { return linear_ ? &*linear_ : nullptr; }
  [[nodiscard]] const CUDA_ARRAY_DESCRIPTOR* rows() const { return rows_ ? &*rows_ : nullptr; }
  [[nodiscard]] std::uint64_t pitch() const { return pitch_; }
  [[nodiscard]] CUarray array() const { return array_; }
  [[nodiscard]] CUmipmappedArray mipmapped() const { return mipmapped_; }
  [[nodiscard]] bool names_array() const { return array_ != nullptr || mipmapped_ != nullptr; }

 private:
  friend class CheckedMemory;
  std::optional<CheckedRange> linear_;  // of rows: from the first to the last byte
  std::optional<CUDA_ARRAY_DESCRIPTOR> rows_;
  std::uint64_t pitch_ = 0;
  CUarray array_ = nullptr;
  CUmipmappedArray mipmapped_ = nullptr;
};

}  // namespace mpsshim::broker
