// SPDX-License-Identifier: Apache-2.0
// How much of the processor's time each user's images have taken of late: so much a minute is a user's own, and who has taken more is overdrawn
// until it has come in again, which takes a minute at most. Nobody is refused for it: see Compilers.
// Free of processes; time is the caller's.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>

#include <sys/types.h>

namespace mpsshim::broker::control {

class ProcessorBudget {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = std::chrono::nanoseconds;
  // 0: no limit.
  explicit ProcessorBudget(Time a_minute) : a_minute_(a_minute) {}

  void charge(uid_t user, Time used, Clock::time_point now) {
    if (a_minute_ == Time::zero() || used <= Time::zero()) return;
    Account& account = accounts_.try_emplace(user, Account{a_minute_, now}).first->second;
    account.left = std::max(left_of(account, now) - used, -a_minute_);
    account.when = now;
    std::erase_if(accounts_, [&](const auto& entry) { return left_of(entry.second, now) >= a_minute_; });
  }
  // How long the user is overdrawn yet; 0: it is not.
  [[nodiscard]] Time overdrawn_for(uid_t user, Clock::time_point now) const {
    const auto account = accounts_.find(user);
    const Time left = account == accounts_.end() ? a_minute_ : left_of(account->second, now);
    if (left >= Time::zero()) return Time::zero();
    const double minutes = static_cast<double>(-left.count()) / static_cast<double>(a_minute_.count());
    return Time(static_cast<Time::rep>(minutes * static_cast<double>(kMinute.count())));
  }

 private:
  static constexpr Time kMinute = std::chrono::minutes(1);
  struct Account {
    Time left;
    Clock::time_point when;
  };
  [[nodiscard]] Time left_of(const Account& account, Clock::time_point now) const {
    const double minutes = std::chrono::duration<double>(now - account.when) / std::chrono::duration<double>(kMinute);
    const double come_in = std::min(minutes, 2.0) * static_cast<double>(a_minute_.count());
    return std::min(a_minute_, account.left + Time(static_cast<Time::rep>(come_in)));
  }

  const Time a_minute_;
  std::map<uid_t, Account> accounts_;  // of those who have taken something of late
};

}  // namespace mpsshim::broker::control
