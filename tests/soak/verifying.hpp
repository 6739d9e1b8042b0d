// SPDX-License-Identifier: Apache-2.0
// The verifying soak: clients whose every result is known (verify/), in rounds of a broker each, which moves what it has from hand to hand far more
// often than in ordinary use (mpsbroker --test-...). Which way follows from the seed. No result may differ, and no call may fail.
#pragma once

#include <cstdint>
#include <string>

namespace mpsshim::soak {

struct VerifyOptions {
  double seconds = 60;
  double round_seconds = 30;
  unsigned clients = 24;
  std::uint64_t seed = 1;
  bool is_native = false;       // no broker: the exercises themselves are verified
  bool is_plain = false;        // nothing is forced
  bool has_everything = false;  // all that can be forced is, in every round
  bool goes_on = false;         // after a difference
  std::string only;             // exercises, by commas; empty: all
  std::string driver;           // the broker's; empty: that of this run of the tests
  std::string keep = "soak";    // folder for what is left of a round with a difference
};

// 0: nothing was wrong.
[[nodiscard]] int verify(const VerifyOptions& options);

}  // namespace mpsshim::soak
