// SPDX-License-Identifier: Apache-2.0
// How much of the processor's time each user's images have taken of late, in compiler and linker processes together: so much a minute is a user's own,
// and who has taken more is overdrawn until it has come in again, which takes a minute at most. Nobody is refused for it: see Compilers.
// ProcessorShares adds who is at work now, in processes of either kind. Free of processes; time is the caller's. The control process's thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

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
    const Time left = left_of(account, now);
    if (left >= Time::zero()) account.is_told = false;
    account.left = std::max(left - used, -a_minute_);
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
  // True once for each time that the user has become overdrawn: then somebody is to be told.
  [[nodiscard]] bool take_news(uid_t user) {
    const auto account = accounts_.find(user);
    return account != accounts_.end() && !std::exchange(account->second.is_told, true);
  }
  [[nodiscard]] Time a_minute() const { return a_minute_; }

 private:
  static constexpr Time kMinute = std::chrono::minutes(1);
  struct Account {
    Time left;
    Clock::time_point when;
    bool is_told = false;
  };
  [[nodiscard]] Time left_of(const Account& account, Clock::time_point now) const {
    const double minutes = std::chrono::duration<double>(now - account.when) / std::chrono::duration<double>(kMinute);
    const double come_in = std::min(minutes, 2.0) * static_cast<double>(a_minute_.count());
    return std::min(a_minute_, account.left + Time(static_cast<Time::rep>(come_in)));
  }

  const Time a_minute_;
  std::map<uid_t, Account> accounts_;  // of those who have taken something of late
};

class ProcessorShares {
 public:
  explicit ProcessorShares(ProcessorBudget::Time a_minute) : budget(a_minute) {}
  ProcessorShares(const ProcessorShares&) = delete;

  ProcessorBudget budget;

  // A job of the user is under way until this ends.
  struct AtWork {
    void operator()(ProcessorShares* shares) const {
      const auto its = shares->jobs_.find(user);
      if (--its->second == 0) shares->jobs_.erase(its);
    }
    uid_t user = 0;
  };
  using Work = std::unique_ptr<ProcessorShares, AtWork>;
  [[nodiscard]] Work begin(uid_t user) {
    ++jobs_[user];
    return Work(this, AtWork{user});
  }
  [[nodiscard]] bool is_alone(uid_t user) const { return jobs_.empty() || (jobs_.size() == 1 && jobs_.contains(user)); }

  // Whoever may have had to wait for another user's job is told where one has ended. When it goes, no job is begun or ended any more.
  void on_end(std::function<void()> told) { told_.push_back(std::move(told)); }
  void tell_ended() const {
    for (const auto& told : told_) told();
  }

 private:
  std::map<uid_t, unsigned> jobs_;  // of those who have some
  std::vector<std::function<void()>> told_;
};

}  // namespace mpsshim::broker::control
