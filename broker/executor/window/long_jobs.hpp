// SPDX-License-Identifier: Apache-2.0
// Jobs of quiet windows that are one long call of the driver, which nothing interrupts (the instantiation of a graph of thousands of kernels), and
// whose length is known beforehand. Half a second of them may come in a row; beyond that they have less than a hundredth of the time while other
// sessions work, so that nobody can keep everybody out with them. A session that is alone waits for nothing.
// Of the window's thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>

#include "broker/executor/window/window_job.hpp"
#include "broker/progress_table.hpp"

namespace mpsshim::broker {

class LongJobs {
 public:
  using Clock = std::chrono::steady_clock;

  explicit LongJobs(const ProgressTable& progress) : progress_(progress) {}

  [[nodiscard]] static bool is_long(const WindowJob& job) { return job.expected >= kLong; }
  // What streams 0 to `used` have been given since the last look. Often while a long job waits.
  void look(std::uint32_t used, Clock::time_point now);
  // Whether the job has to wait. It never does longer than kWatch beside streams that are given nothing.
  [[nodiscard]] bool holds_back(const WindowJob& job, Clock::time_point now) const;
  void note(const WindowJob& job, Clock::duration took, Clock::time_point now);

 private:
  static constexpr std::chrono::milliseconds kLong{10};
  static constexpr std::chrono::milliseconds kInARow{500};
  static constexpr int kTimes = 128;                   // what a long job took, so much longer ...
  static constexpr std::chrono::milliseconds kWatch{200};  // ... unless nobody else has been given work for so long
  struct Seen {
    std::uint32_t issued = 0;
    Clock::time_point changed{};
  };

  const ProgressTable& progress_;
  Clock::time_point paid_off_{};  // when the time that long jobs have taken will have been made up for
  std::uint32_t used_ = 0;
  std::unique_ptr<std::array<Seen, kProgressStreams>> seen_;  // once a long job has had to wait
};

}  // namespace mpsshim::broker
