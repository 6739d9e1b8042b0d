// SPDX-License-Identifier: Apache-2.0
// The functions that clients' kernels call when an assertion fails, as machine code: made of proto/image/assertion_handler.inc when this was built,
// for each generation of GPUs that the toolkit at hand compiles for; without its compiler, for none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mpsshim::broker {

inline constexpr std::uint32_t kStubsPerBlock = 64;
// Variables of that code: where its entries lie, which has to be placed (proto/image/managed.hpp); the functions' addresses.
inline constexpr const char* kStubEntries = "mpsshim_entries";
inline constexpr const char* kStubAddresses = "mpsshim_assertions";

// Empty: there is none for such a GPU.
[[nodiscard]] std::span<const std::byte> assertion_code(unsigned compute);

}  // namespace mpsshim::broker
