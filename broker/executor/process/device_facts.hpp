// SPDX-License-Identifier: Apache-2.0
// Asks the driver everything that clients will want to know about it (proto/device_facts.hpp), once, at the executor's start.
#pragma once

#include "broker/driver/driver.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::broker {

// Facts of all devices that the driver shows, as many as there is room for. `device` is the one whose `context` is current: the others are told to
// have its context limits and priorities. A later one that cannot be asked ends the list, with a line in the log.
[[nodiscard]] CUresult collect_facts(const Driver& driver, CUdevice device, CUcontext context, proto::DriverFacts& facts);

}  // namespace mpsshim::broker
