// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/core_pressure.hpp"

#include <array>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace mpsshim::broker {

RunDelay::RunDelay() : file_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) { taken_ = read(); }

std::chrono::nanoseconds RunDelay::take() {
  const std::chrono::nanoseconds now = read();
  return now - std::exchange(taken_, now);
}

// The time on a core, the time without one, and how often it was given one.
std::chrono::nanoseconds RunDelay::read() const {
  std::array<char, 96> text;
  const ssize_t size = file_.valid() ? pread(file_.get(), text.data(), text.size(), 0) : 0;
  const std::string_view all(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  const std::size_t second = all.find(' ');
  std::int64_t delay = 0;
  if (second == std::string_view::npos || std::from_chars(all.data() + second + 1, all.data() + all.size(), delay).ec != std::errc()) return taken_;
  return std::chrono::nanoseconds(delay);
}

}  // namespace mpsshim::broker
