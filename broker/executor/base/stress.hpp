// SPDX-License-Identifier: Apache-2.0
// An executor under stress (stress_options.hpp): sessions change worker and context whatever they do, quiet windows open all the time, pools have few
// graphs. StressThread is what forces it; here is what the others ask and count.
#pragma once

#include <atomic>
#include <cstdint>

#include "broker/executor/base/stress_options.hpp"

namespace mpsshim::broker {

struct Stress : StressOptions {
  explicit Stress(const StressOptions& options) : StressOptions(options) {}
  [[nodiscard]] bool is_on() const { return move_ms != 0 || window_ms != 0 || stock != 0 || gather != 0; }

  // What has come of it: added to by whoever did it.
  std::atomic<std::uint64_t> sessions_moved{0};
  std::atomic<std::uint64_t> streams_exchanged{0};  // went on in another context
  std::atomic<std::uint64_t> windows{0};
  std::atomic<std::uint64_t> graphs_missed{0};  // wanted, and none was there
};

}  // namespace mpsshim::broker
