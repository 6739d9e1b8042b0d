// SPDX-License-Identifier: Apache-2.0
// One-dimensional copies: what a pointer is, and which record or staged copy follows from that.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/staging.hpp"

namespace mpsshim::interposer::forward {

// What the function's name says about a pointer. A named host pointer is host memory even where a module variable has the same address.
enum class Named : std::uint8_t { device, host, by_address };

// The space of [address, address + bytes). CUDA_ERROR_INVALID_VALUE: device memory was named, or the address is in a lease, and the range is
// not within one allocation. `address` becomes the executor's where that is another one (registered memory).
[[nodiscard]] CUresult classify(std::uint64_t& address, std::uint64_t bytes, Named named, Space& space);
// The same for an address that goes into an object or a description as it is: CUDA_ERROR_NOT_SUPPORTED where the executor's is another one.
[[nodiscard]] CUresult classify_fixed(std::uint64_t address, std::uint64_t bytes, Named named, Space& space);

enum class Completion : std::uint8_t {
  as_posted,  // the asynchronous functions: what CUDA leaves to the stream is left to it
  host_safe,  // the synchronous ones: when the function returns, host memory has been read or written
};

struct CopySide {
  std::uint64_t address = 0;
  Named named = Named::by_address;
};

[[nodiscard]] CUresult copy(Stream& stream, CopySide destination, CopySide source, std::size_t bytes, Completion completion);

}  // namespace mpsshim::interposer::forward
