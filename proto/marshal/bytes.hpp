// SPDX-License-Identifier: Apache-2.0
// What client and executor share when they marshal automatic calls by their argument descriptors (proto/arguments.hpp):
// the outcome, and the walk over trailing bytes, where each array or string begins at a multiple of 8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "proto/ids.hpp"

namespace mpsshim::proto {

enum class Marshalled : std::uint8_t {
  ok,
  invalid_handle,   // an id or handle that is not the session's: CUDA_ERROR_INVALID_HANDLE
  invalid_address,  // a device range that is not the session's: CUDA_ERROR_INVALID_VALUE
  null_pointer,     // a pointer that must not be NULL: CUDA_ERROR_INVALID_VALUE
  too_large,        // more bytes than a record or a reply slot holds: CUDA_ERROR_INVALID_VALUE
  out_of_ids,       // the client has no free id of the kind: CUDA_ERROR_OUT_OF_MEMORY
};

inline constexpr std::size_t kTrailingAlignment = 8;

// Hands out consecutive aligned pieces of a buffer. Any size is safe: a piece that does not fit is refused, and so are all after it.
template <class Byte>
class TrailingCursor {
 public:
  explicit TrailingCursor(std::span<Byte> bytes) : bytes_(bytes) {}

  // `count` elements of `element_bytes`, or an empty optional-like pair: false if they do not fit.
  [[nodiscard]] bool take(std::uint64_t count, std::size_t element_bytes, std::span<Byte>& piece) {
    const std::size_t begin = (used_ + kTrailingAlignment - 1) / kTrailingAlignment * kTrailingAlignment;
    if (failed_ || begin > bytes_.size() || count > (bytes_.size() - begin) / element_bytes) {
      failed_ = true;
      return false;
    }
    piece = bytes_.subspan(begin, static_cast<std::size_t>(count) * element_bytes);
    used_ = begin + piece.size();
    return true;
  }

  [[nodiscard]] std::size_t used() const { return used_; }

 private:
  std::span<Byte> bytes_;
  std::size_t used_ = 0;
  bool failed_ = false;
};

// A driver's handle as 64 bits: most are pointers, some (texture objects) are numbers.
template <class Handle>
std::uint64_t handle_bits(Handle handle) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<std::uintptr_t>(handle);
  } else {
    return static_cast<std::uint64_t>(handle);
  }
}

template <class Handle>
Handle handle_from_bits(std::uint64_t bits) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(bits));
  } else {
    return static_cast<Handle>(bits);
  }
}

template <class T>
inline constexpr bool kIsId = false;
template <HandleKind Kind>
inline constexpr bool kIsId<Id<Kind>> = true;

// False where a Present member is given and 0: the pointer was NULL.
template <auto... Present, class Record>
bool is_present(const Record& record) {
  return ((record.*Present != 0) && ...);
}

}  // namespace mpsshim::proto
