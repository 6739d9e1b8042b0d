// SPDX-License-Identifier: Apache-2.0
// What this process asks the broker to be held to, by its environment: a percentage or a static partition of the multiprocessors, a priority, a
// group. What is wrong there is told in one line, once. Called by whoever opens a connection, under the lock of cuInit or before anybody uses it.
#pragma once

#include "gen/cuda_api.hpp"
#include "interposer/channel/connection.hpp"

namespace mpsshim::interposer {

// Once for each connection, before a session begins on it. Notes what the broker answers (local/devices.hpp).
[[nodiscard]] CUresult ask_provision(Connection& connection);

}  // namespace mpsshim::interposer
