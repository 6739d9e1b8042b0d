// SPDX-License-Identifier: Apache-2.0
// For the files of address_oracle.hpp: arithmetic that does not overflow, whose lease an address is in, which file a descriptor is of.
#pragma once

#include <cstdint>

#include <sys/stat.h>

#include "tests/wire/support/address_oracle.hpp"

namespace mpsshim::test {

__extension__ typedef unsigned __int128 Number;  // nothing that is asked about is larger

inline constexpr Number kAllAddresses = Number{1} << 64;

// The session in whose lease of that kind all of it lies; 0: none's.
[[nodiscard]] inline std::uint64_t leaseholder(std::uint64_t first, std::uint64_t address, Number size_bytes) {
  constexpr std::uint64_t kAllLeases = kPinnedLease - kDeviceLease;
  if (address < first || address - first >= kAllLeases) return 0;
  const std::uint64_t number = (address - first) / kLeaseBytes;
  return Number{address} + size_bytes <= Number{first} + Number{number + 1} * kLeaseBytes ? number + 1 : 0;
}

[[nodiscard]] inline bool touches_leases(std::uint64_t address, Number size_bytes) {
  constexpr std::uint64_t kEnd = kPinnedLease + (kPinnedLease - kDeviceLease);
  return address < kEnd && Number{address} + size_bytes > kDeviceLease;
}

// Of a file, with its size; 0: it is none.
[[nodiscard]] inline std::uint64_t inode_of(int file, std::uint64_t& size_bytes) {
  struct stat about {};
  if (fstat(file, &about) != 0) return 0;
  size_bytes = static_cast<std::uint64_t>(about.st_size);
  return about.st_ino;
}

}  // namespace mpsshim::test
