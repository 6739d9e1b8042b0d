// SPDX-License-Identifier: Apache-2.0
// How much of the log each user's clients may cause, so that none fills the disk. Bytes come back evenly, the whole in an hour. What is left is
// kept for what matters: plain lines are left out once half is gone, warnings at three quarters, errors at the end.
// Free of files; time is the caller's. One thread at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include <sys/types.h>

#include "broker/log.hpp"

namespace mpsshim::broker {

class LogQuota {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::hours kWhole{1};
  static constexpr std::chrono::minutes kTold{1};

  explicit LogQuota(std::uint64_t bytes) : bytes_(static_cast<double>(bytes)) {}

  // True if the line is to be written.
  [[nodiscard]] bool take(uid_t user, LogLevel level, std::size_t line_bytes, Clock::time_point now) {
    Account& account = accounts_.try_emplace(user, Account{bytes_, now, now - kTold}).first->second;
    const std::chrono::duration<double> passed = now - account.filled_at;
    account.left = std::min(bytes_, account.left + bytes_ * (passed / std::chrono::duration<double>(kWhole)));
    account.filled_at = now;
    if (account.left - static_cast<double>(line_bytes) < bytes_ * kept_from(level)) {
      ++account.left_out;
      return false;
    }
    account.left -= static_cast<double>(line_bytes);
    return true;
  }
  // Lines of that user that were left out since this was last said; 0 within a minute of that.
  [[nodiscard]] std::uint64_t take_left_out(uid_t user, Clock::time_point now) {
    const auto found = accounts_.find(user);
    if (found == accounts_.end() || found->second.left_out == 0 || now - found->second.told_at < kTold) return 0;
    found->second.told_at = now;
    return std::exchange(found->second.left_out, 0);
  }

 private:
  struct Account {
    double left = 0;
    Clock::time_point filled_at;
    Clock::time_point told_at;
    std::uint64_t left_out = 0;
  };
  static double kept_from(LogLevel level) {
    switch (level) {
      case LogLevel::debug:
      case LogLevel::info: return 0.5;
      case LogLevel::warning: return 0.25;
      case LogLevel::error: return 0;
    }
    return 0;
  }

  const double bytes_;
  std::map<uid_t, Account> accounts_;
};

}  // namespace mpsshim::broker
