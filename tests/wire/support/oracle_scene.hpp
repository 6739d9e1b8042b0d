// SPDX-License-Identifier: Apache-2.0
// Memory of two sessions and an array, as the oracle has heard of them; and a call of the driver, of which it is asked whether it is right.
#pragma once

#include <cstdint>

#include "tests/wire/support/address_oracle.hpp"
#include "tests/wire/support/fake_driver.hpp"

namespace mpsshim::test {

inline constexpr std::uint64_t kOwn = kDeviceLease;
inline constexpr std::uint64_t kForeign = kDeviceLease + kLeaseBytes;  // of session 2
inline constexpr std::uint64_t kPinned = kPinnedLease;
inline constexpr std::uint64_t kBytes = 4096;

inline void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }

struct OracleScene {
  FakeDriver fake;
  AddressOracle& oracle = fake.oracle;
  CUarray array = fake.make_array({64, 16, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0});

  OracleScene() {
    oracle.note_mapped(kOwn, kBytes);
    oracle.note_mapped(kForeign, kBytes);
    oracle.note_registered(kPinned, kBytes);
  }
};

template <auto Member, typename Type = decltype(Member)>
struct Call;

// Whether the oracle has nothing to say of such a call.
template <auto Member, typename... Parameters>
struct Call<Member, CUresult (CUDAAPI* DriverTable::*)(Parameters...)> {
  static bool is_right(OracleScene& f, Parameters... parameters) {
    f.oracle.ask<Member>(parameters...);
    return f.oracle.take_violations().empty();
  }
};

}  // namespace mpsshim::test
