// SPDX-License-Identifier: Apache-2.0
// Client memory that may be handed to the driver: what CheckedMemory (checked_memory.hpp), and nobody else, makes of addresses, pitches, offsets and
// sizes that records bring. Streams queue these, graphs keep them, CheckedCalls takes nothing else.
//
// What a type holds is normal: a pitch is at least a row, a slice at least its rows, ends that are arrays are within them. Nothing in them is
// looked up or checked again. Values without a thread of their own. Single words: checked_words.hpp; what reads arrays and external memory:
// checked_resources.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "broker/driver/driver.hpp"

namespace mpsshim::broker {

// Why something cannot be had: no correct client could have sent it, or a wrong program has. Neither: there is nothing to do.
struct Refusal {
  const char* malformed = nullptr;
  CUresult result = CUDA_SUCCESS;
  [[nodiscard]] explicit operator bool() const { return malformed != nullptr || result != CUDA_SUCCESS; }
};

template <typename T>
class Checked {
 public:
  Checked(T found) : found_(std::move(found)) {}             // NOLINT(google-explicit-constructor)
  Checked(Refusal refusal) : refusal_(refusal) {}            // NOLINT(google-explicit-constructor)
  Checked(CUresult refused) : refusal_{nullptr, refused} {}  // NOLINT(google-explicit-constructor)
  [[nodiscard]] static Checked malformed(const char* what) { return Refusal{what, CUDA_SUCCESS}; }
  [[nodiscard]] static Checked nothing() { return Refusal{}; }

  [[nodiscard]] explicit operator bool() const { return found_.has_value(); }
  [[nodiscard]] T& operator*() { return *found_; }
  [[nodiscard]] const T* operator->() const { return &*found_; }
  [[nodiscard]] Refusal refusal() const { return refusal_; }

 private:
  std::optional<T> found_;
  Refusal refusal_;
};

// Bytes that are the session's.
class CheckedRange {
 public:
  [[nodiscard]] std::uint64_t address() const { return address_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] bool is_host() const { return is_host_; }

 private:
  friend class CheckedMemory;
  CheckedRange(std::uint64_t address, std::uint64_t size_bytes, bool is_host) : address_(address), size_bytes_(size_bytes), is_host_(is_host) {}

  std::uint64_t address_;
  std::uint64_t size_bytes_;
  bool is_host_;
};

// Both ends are as long.
class CheckedCopy {
 public:
  [[nodiscard]] const CheckedRange& destination() const { return destination_; }
  [[nodiscard]] const CheckedRange& source() const { return source_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return source_.size_bytes(); }

 private:
  friend class CheckedMemory;
  CheckedCopy(CheckedRange destination, CheckedRange source) : destination_(destination), source_(source) {}

  CheckedRange destination_;
  CheckedRange source_;
};

// Slices of rows of bytes.
struct BoxSize {
  std::uint64_t width = 0;  // bytes
  std::uint64_t height = 0;
  std::uint64_t depth = 0;
};

// From the first byte of a box to its last all is the session's.
class CheckedBox {
 public:
  [[nodiscard]] std::uint64_t address() const { return address_; }
  [[nodiscard]] std::uint64_t pitch() const { return pitch_; }  // bytes from row to row
  [[nodiscard]] std::uint64_t rows() const { return rows_; }    // from slice to slice
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }  // from the first byte to the last
  [[nodiscard]] bool is_host() const { return is_host_; }

 private:
  friend class CheckedMemory;
  CheckedBox(const CheckedRange& range, std::uint64_t pitch, std::uint64_t rows)
      : address_(range.address()), size_bytes_(range.size_bytes()), pitch_(pitch), rows_(rows), is_host_(range.is_host()) {}

  std::uint64_t address_;
  std::uint64_t size_bytes_;
  std::uint64_t pitch_;
  std::uint64_t rows_;
  bool is_host_;
};

class CheckedBoxCopy {
 public:
  [[nodiscard]] const CheckedBox& destination() const { return destination_; }
  [[nodiscard]] const CheckedBox& source() const { return source_; }
  [[nodiscard]] const BoxSize& size() const { return size_; }

 private:
  friend class CheckedMemory;
  CheckedBoxCopy(CheckedBox destination, CheckedBox source, BoxSize size) : destination_(destination), source_(source), size_(size) {}

  CheckedBox destination_;
  CheckedBox source_;
  BoxSize size_;
};

// An array at one end or both.
class CheckedArrayCopy {
 public:
  [[nodiscard]] const CUDA_MEMCPY3D& description() const { return *description_; }

 private:
  friend class CheckedMemory;
  explicit CheckedArrayCopy(const CUDA_MEMCPY3D& description) : description_(std::make_unique<CUDA_MEMCPY3D>(description)) {}

  std::unique_ptr<const CUDA_MEMCPY3D> description_;
};

class CheckedFill {
 public:
  [[nodiscard]] std::uint64_t destination() const { return destination_; }
  [[nodiscard]] std::uint64_t pitch_bytes() const { return pitch_bytes_; }
  [[nodiscard]] std::uint64_t width() const { return width_; }  // elements
  [[nodiscard]] std::uint64_t height() const { return height_; }
  [[nodiscard]] std::uint32_t value() const { return value_; }
  [[nodiscard]] std::uint32_t element_bytes() const { return element_bytes_; }  // 1, 2 or 4
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }        // from the first byte to the last

 private:
  friend class CheckedMemory;
  CheckedFill() = default;

  std::uint64_t destination_ = 0;
  std::uint64_t pitch_bytes_ = 0;
  std::uint64_t width_ = 0;
  std::uint64_t height_ = 0;
  std::uint32_t value_ = 0;
  std::uint32_t element_bytes_ = 0;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace mpsshim::broker
