// SPDX-License-Identifier: Apache-2.0
// A doorbell of a channel, this process's end: an eventfd whose number the program does not know of. Programs close descriptors that they do not
// know (close_range, daemons) and then open something of their own, so before anything is written it is looked at whether the number still means
// the doorbell. All eventfds share one inode; so the doorbell has a mark, the signal of F_SETSIG, which is never sent for it.
// Any thread.
#pragma once

#include <atomic>

#include "proto/segment.hpp"

namespace mpsshim::interposer {

class Doorbell {
 public:
  Doorbell() = default;
  explicit Doorbell(proto::FileDescriptor bell);
  Doorbell(Doorbell&&) = default;
  Doorbell& operator=(Doorbell&& other) noexcept;
  ~Doorbell() { let_go(); }

  // One system call for the look, one for the ring. Neither is a cancellation point.
  void ring() const;
  // True once one of this process was found to be something else: nobody hears of what it posts any more.
  [[nodiscard]] static bool any_is_lost() { return is_lost_.load(std::memory_order_relaxed); }

 private:
  [[nodiscard]] bool is_ours() const;
  void let_go();  // closed if it is ours

  static inline std::atomic<bool> is_lost_{false};

  proto::FileDescriptor bell_;
  bool is_marked_ = false;  // not where the kernel refuses: then it is taken for ours
};

}  // namespace mpsshim::interposer
