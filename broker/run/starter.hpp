// SPDX-License-Identifier: Apache-2.0
// A broker for an mpsrun: the one that answers, or one that is started. Of many mpsruns that come at once one starts it, under a lock that is held
// only meanwhile. What is started keeps nothing of us and ends by itself once nobody holds it (mpsbroker --exit-when-idle), so nobody has to stop it.
#pragma once

#include <string>

#include <sys/types.h>

#include "broker/run/parts.hpp"
#include "broker/run/place.hpp"

namespace mpsshim::broker::run {

struct BrokerWish {
  std::string driver;
  unsigned idle_s = 2;
  pid_t holder = 0;  // the broker stays as long as this process lives
};

// The directory of a broker that serves, and that stays for the holder where it would ever end by itself. "": `why` is a sentence, or what mpsbroker
// said.
[[nodiscard]] std::string have_broker(const Parts& parts, const Place& place, const BrokerWish& wish, std::string& why);

}  // namespace mpsshim::broker::run
