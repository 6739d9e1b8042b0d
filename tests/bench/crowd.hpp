// SPDX-License-Identifier: Apache-2.0
// A crowd of worker processes of one side (native, NVIDIA MPS, ours), started by the parent, which makes no CUDA call itself. Used by one thread.
// Nothing here waits for ever: a worker that fails, dies or exceeds a limit becomes a Failure with its reason, and the destructor leaves no
// process behind.
#pragma once

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/types.h>

#include "tests/bench/stage.hpp"

namespace mpsshim::bench {

class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Crowd {
 public:
  explicit Crowd(std::vector<std::string> environment);  // NAME=VALUE, over what the parent has
  ~Crowd();
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  [[nodiscard]] unsigned size() const { return static_cast<unsigned>(pids_.size()); }
  [[nodiscard]] pid_t pid(unsigned slot) const { return pids_[slot]; }
  [[nodiscard]] const Slot& slot(unsigned number) const { return stage_->slots[number]; }

  // Starts one more worker without waiting for it; its number. Image and first launch: see Slot.
  unsigned start(std::uint64_t image = 0, bool launches_first = true);
  // Waits until all have done their first launch, or are ready for it.
  void wait_ready(double limit_s);

  // Order and wait are for workers that are ready. A wait lasts at most until the order's end and some seconds more.
  void order(unsigned slot, const Order& order);
  void cancel(unsigned slot);
  const Outcome& wait_for(unsigned slot, double grace_s = 20);
  // What that worker's last order left; valid until its next one.
  [[nodiscard]] std::span<const float> samples_us(unsigned slot) const;

 private:
  void require_alive(unsigned slot);
  void reap(double limit_s);

  std::vector<std::string> environment_;
  int stage_fd_ = -1;
  Stage* stage_ = nullptr;
  std::vector<pid_t> pids_;  // 0: reaped
};

}  // namespace mpsshim::bench
