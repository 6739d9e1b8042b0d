// SPDX-License-Identifier: Apache-2.0
// Log lines that a client can cause as often as it likes: the first ones of its user are written, then one a second, and how many were left out.
// The control process's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "broker/log.hpp"
#include "broker/log_subject.hpp"

namespace mpsshim::broker::control {

class ComplaintBudget {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint64_t kBurst = 50;
  static constexpr std::chrono::seconds kRefill{1};

  // True if the line is to be written.
  [[nodiscard]] bool take(Clock::time_point now) {
    if (now - refilled_ >= kRefill) {
      const auto due = static_cast<std::uint64_t>((now - refilled_) / kRefill);
      left_ = due >= kBurst - left_ ? kBurst : left_ + due;
      refilled_ = now;
    }
    if (left_ == 0) {
      ++left_out_;
      return false;
    }
    --left_;
    return true;
  }
  // Lines left out since the last call.
  [[nodiscard]] std::uint64_t take_left_out() { return std::exchange(left_out_, 0); }

 private:
  std::uint64_t left_ = kBurst;
  std::uint64_t left_out_ = 0;
  Clock::time_point refilled_ = Clock::now();
};

// Each user's clients have one, so that nobody's complaints take the place of others'.
inline ComplaintBudget& complaint_budget() {
  static std::map<std::optional<uid_t>, ComplaintBudget> budgets;
  return budgets[log_subject()];
}

// A warning about what a client has sent.
template <typename... Args>
void complain(fmt::format_string<Args...> format, Args&&... args) {
  ComplaintBudget& budget = complaint_budget();
  if (!budget.take(ComplaintBudget::Clock::now())) return;
  if (const std::uint64_t left_out = budget.take_left_out(); left_out != 0) {
    log_warning("{} lines about what clients have sent were left out: they came faster than one a second.", left_out);
  }
  log_warning(format, std::forward<Args>(args)...);
}

}  // namespace mpsshim::broker::control
