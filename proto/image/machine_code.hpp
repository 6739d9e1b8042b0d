// SPDX-License-Identifier: Apache-2.0
//
// Instructions of a cubin. Since compute capability 7.0 they have 16 bytes each, and the opcode lies at the same place. The bytes are not trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/image/elf.hpp"

namespace mpsshim::image {

inline constexpr std::size_t kInstructionBytes = 16;

// Of an instruction's first half. What kind its operands are is in the three bits above: the same operation may have several forms.
constexpr std::uint64_t opcode_of(std::uint64_t first_half) { return first_half & 0x1ff; }

// 90 for sm_90 and sm_90a; 0: it is no cubin.
[[nodiscard]] unsigned architecture_of(std::span<const std::byte> cubin);

// Whether the instructions of that architecture are as this file says.
[[nodiscard]] bool has_known_instructions(unsigned architecture);

// CubinInfo::adds_for_system.
[[nodiscard]] bool adds_for_system(const ElfFile& elf, unsigned architecture);

}  // namespace mpsshim::image
