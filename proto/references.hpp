// SPDX-License-Identifier: Apache-2.0
// What texture and surface references are bound to, and which of a texture reference's settings a program has made (ReferenceSetRecord).
// Settings that it has not made are the driver's own: setting them all would be more than the program asked for.
#pragma once

#include <cstdint>

namespace mpsshim::proto {

// Numbers are on the wire: append only.
enum class ReferenceSource : std::uint32_t {
  nothing = 0,
  linear = 1,           // cuTexRefSetAddress
  rows = 2,             // cuTexRefSetAddress2D
  array = 3,            // cuTexRefSetArray, cuSurfRefSetArray
  mipmapped_array = 4,  // cuTexRefSetMipmappedArray
};
inline constexpr std::uint32_t kReferenceSources = 5;

enum ReferenceSetting : std::uint32_t {
  kFormatIsSet = 1u << 0,
  kFlagsAreSet = 1u << 1,
  kAddressModeIsSet = 1u << 2,  // of the first dimension; the others follow
  kFilterModeIsSet = 1u << 5,
  kMipmapFilterModeIsSet = 1u << 6,
  kMaxAnisotropyIsSet = 1u << 7,
  kLevelBiasIsSet = 1u << 8,
  kLevelClampIsSet = 1u << 9,
  kBorderIsSet = 1u << 10,
};

}  // namespace mpsshim::proto
