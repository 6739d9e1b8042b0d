// SPDX-License-Identifier: Apache-2.0
// Asks the driver everything that clients will want to know about it (proto/device_facts.hpp), once, at the executor's start.
#pragma once

#include "broker/driver/driver.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::broker {

// Facts of all devices that the driver shows; context limits and priorities only of `device`, whose context is current.
[[nodiscard]] CUresult collect_facts(const Driver& driver, CUdevice device, CUcontext context, proto::DriverFacts& facts);

}  // namespace mpsshim::broker
