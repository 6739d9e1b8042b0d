// SPDX-License-Identifier: Apache-2.0
// Which of a texture reference's settings a program has made (ReferenceSetRecord).
// Settings that it has not made are the driver's own: setting them all would be more than the program asked for.
#pragma once

#include "gen/enums.hpp"

namespace mpsshim::proto {

inline constexpr ReferenceSetting kAddressModeSettings[] = {ReferenceSetting::address_mode_x, ReferenceSetting::address_mode_y,
                                                            ReferenceSetting::address_mode_z};  // of each dimension

}  // namespace mpsshim::proto
