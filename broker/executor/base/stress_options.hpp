// SPDX-License-Identifier: Apache-2.0
// For tests (mpsbroker --test-...): what moves from one hand to another does so far more often than in ordinary use. Nothing is done that might not
// happen otherwise. As in ordinary use where they are 0.
#pragma once

namespace mpsshim::broker {

struct StressOptions {
  unsigned move_ms = 0;    // every so many milliseconds each worker gives sessions of its own away, and their streams to any context
  unsigned window_ms = 0;  // so often a quiet window is opened
  unsigned stock = 0;      // graphs of one shape that a pool has at most
  unsigned gather = 0;     // not 0: launches wait for more of them as if workers were short of time
};

}  // namespace mpsshim::broker
