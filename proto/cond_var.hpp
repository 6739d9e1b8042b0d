// SPDX-License-Identifier: Apache-2.0
// std::condition_variable for a Mutex. A predicate reads what the mutex guards, and says so to the analysis:
//
//   changed_.wait(lock, [&]() REQUIRES(mutex_) { return is_done_; });
#pragma once

#include <chrono>
#include <condition_variable>
#include <utility>

#include "proto/mutex.hpp"

namespace mpsshim {

class CondVar {
 public:
  void notify_one() noexcept { native_.notify_one(); }
  void notify_all() noexcept { native_.notify_all(); }

  void wait(std::unique_lock<Mutex>& lock) { native_.wait(Borrowed(lock).native()); }
  template <typename Predicate>
  void wait(std::unique_lock<Mutex>& lock, Predicate ready) {
    native_.wait(Borrowed(lock).native(), std::move(ready));
  }
  template <typename Rep, typename Period>
  std::cv_status wait_for(std::unique_lock<Mutex>& lock, const std::chrono::duration<Rep, Period>& most) {
    return native_.wait_for(Borrowed(lock).native(), most);
  }
  template <typename Rep, typename Period, typename Predicate>
  bool wait_for(std::unique_lock<Mutex>& lock, const std::chrono::duration<Rep, Period>& most, Predicate ready) {
    return native_.wait_for(Borrowed(lock).native(), most, std::move(ready));
  }
  template <typename Clock, typename Duration>
  std::cv_status wait_until(std::unique_lock<Mutex>& lock, const std::chrono::time_point<Clock, Duration>& until) {
    return native_.wait_until(Borrowed(lock).native(), until);
  }
  template <typename Clock, typename Duration, typename Predicate>
  bool wait_until(std::unique_lock<Mutex>& lock, const std::chrono::time_point<Clock, Duration>& until, Predicate ready) {
    return native_.wait_until(Borrowed(lock).native(), until, std::move(ready));
  }

 private:
  // What the standard's class asks for, of a mutex that the caller's lock goes on owning, also where the wait is left by unwinding.
  class Borrowed {
   public:
    explicit Borrowed(std::unique_lock<Mutex>& lock) : native_(lock.mutex()->native_, std::adopt_lock) {}
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    ~Borrowed() { (void)native_.release(); }
    [[nodiscard]] std::unique_lock<std::mutex>& native() { return native_; }

   private:
    std::unique_lock<std::mutex> native_;
  };

  std::condition_variable native_;
};

}  // namespace mpsshim
