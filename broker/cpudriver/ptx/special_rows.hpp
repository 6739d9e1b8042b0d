// SPDX-License-Identifier: Apache-2.0
//
// Where the values of special registers lie: rows of their own base (Base::special, program.hpp), filled by each warp.
#pragma once

#include <cstdint>

namespace mpsshim::ptx {

// Rows that each warp fills. 32-bit rows first, then 64-bit ones; offsets in bytes.
enum class Special : std::uint32_t {
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  nwarpid,
  smid,
  nsmid,
  lanemask_eq,
  lanemask_le,
  lanemask_lt,
  lanemask_ge,
  lanemask_gt,
  envreg1,
  envreg2,
  dynamic_shared,
  total_smem_size,
  dynamic_smem_size,
  reserved_smem,
  reserved_smem_1,
  reserved_smem_end,
  zero,
  one,
  ones,
  count32_,
  gridid = count32_,
  dynamic_shared64,
  frame_local,
  end_
};

inline constexpr std::uint32_t kReservedSharedBytes = 1024;  // of a block, as on the hardware

[[nodiscard]] constexpr std::uint32_t special_offset(Special row) {
  constexpr auto narrow = static_cast<std::uint32_t>(Special::count32_);
  const auto index = static_cast<std::uint32_t>(row);
  return index <= narrow ? index * 128 : narrow * 128 + (index - narrow) * 256;
}

}  // namespace mpsshim::ptx
