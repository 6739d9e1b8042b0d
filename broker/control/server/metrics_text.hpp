// SPDX-License-Identifier: Apache-2.0
// The figures of a broker in Prometheus' text format, version 0.0.4 (docs/seeing.md, "Prometheus"). Names and labels are promises, as keys of JSON
// are. The control process's thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "broker/control/manager/session_manager.hpp"

namespace mpsshim::broker::control {

inline constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

// Written from front to back: a family is begun, then come all of its samples.
class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string>>;
  enum class Type { gauge, counter };

  void family(std::string_view name, Type type, std::string_view help);
  void sample(const Labels& labels, std::uint64_t value);
  void sample(const Labels& labels, double value);
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void begin_sample(const Labels& labels);
  std::string_view name_;
  std::string text_;
};

// `dropped`: connections that were given up so far, because their request did not come or their answer was not read.
[[nodiscard]] std::string metrics_of(const SessionManager& manager, std::uint64_t dropped);

}  // namespace mpsshim::broker::control
