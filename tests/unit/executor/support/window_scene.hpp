// SPDX-License-Identifier: Apache-2.0
// A quiet window and the progress of eight streams, which a test begins and ends by hand.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "broker/executor/window/quiet_window.hpp"

namespace mpsshim::broker {

using std::chrono::milliseconds;
inline constexpr std::uint64_t kOwn = 9;  // the session that asks for windows

template <typename Condition>
bool soon(Condition condition) {
  for (int i = 0; i < 2'000; ++i) {
    if (condition()) return true;
    usleep(1'000);
  }
  return false;
}

inline WindowLimits quick_limits() {
  WindowLimits limits;
  limits.hold_per_second = milliseconds(100);
  limits.move_after = milliseconds(100);
  limits.give_up = milliseconds(400);
  limits.defer = milliseconds(200);
  return limits;
}

// Streams 0, 1, … belong to sessions 1, 2, …
struct Window {
  explicit Window(const WindowLimits& limits = quick_limits()) : window(*table, 1, limits, [] {}) {
    for (std::uint32_t i = 0; i < 8; ++i) table->stream[i].session = i + 1;
    window.set_used_streams([] { return 8u; });
    window.set_on_starved([this](const QuietWindow::Starving& report) {
      starving = report.session;
      blocking = report.blocker;
      ++reports;
    });
  }
  void begin(std::uint32_t stream) { ++table->stream[stream].issued; }
  void end(std::uint32_t stream) { table->stream[stream].completed = table->stream[stream].issued.load(); }
  void ask(bool deferrable = false) {
    window.submit({.what = "a test's call", .session = kOwn, .deferrable = deferrable, .run = [this](WindowResult result) {
                     ++(result == WindowResult::open ? opened : refused);
                   }});
  }

  std::unique_ptr<ProgressTable> table = std::make_unique<ProgressTable>();
  std::atomic<int> opened{0};
  std::atomic<int> refused{0};
  std::atomic<int> reports{0};
  std::atomic<std::uint64_t> starving{0};
  std::atomic<std::uint64_t> blocking{0};
  QuietWindow window;  // its thread uses the above
};

}  // namespace mpsshim::broker
