// SPDX-License-Identifier: Apache-2.0
//
// __managed__ variables of an image, and images in which they lie at given addresses: whatever refers to such a variable holds the address as
// a constant, and what is left of it is an ordinary variable that nothing uses, with the value that the program gave it at first.
// Not trusted: what does not lie within the bytes, or is no form known here, is refused with a sentence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mpsshim::image {

struct ManagedVariable {
  std::string name;
  std::uint64_t size_bytes = 0;
  bool starts_as_zeroes = false;
};

struct Placement {
  std::string name;
  std::uint64_t address = 0;
  bool starts_as_zeroes = false;
};

[[nodiscard]] std::vector<ManagedVariable> managed_of_cubin(std::span<const std::byte> cubin);
// In place; each managed variable needs its placement. False: `why` says what cannot be done; the bytes are of no use any more.
[[nodiscard]] bool place_in_cubin(std::span<std::byte> cubin, std::span<const Placement> placements, std::string& why);

// PTX as compilers write it: a variable a declaration, and no name of one used for anything else.
[[nodiscard]] std::vector<ManagedVariable> managed_of_ptx(std::string_view text);
// For an engine that takes addresses of 64 bits wherever a variable's name may stand; ptxas does not.
[[nodiscard]] std::string place_in_ptx(std::string_view text, std::span<const Placement> placements);

}  // namespace mpsshim::image
