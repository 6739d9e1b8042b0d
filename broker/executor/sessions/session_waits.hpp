// SPDX-License-Identifier: Apache-2.0
// What a session is to do once work that is queued by now has been issued, or has ended: in the order in which it was said, as far as it is due.
// Owned by a Session and touched by its worker alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "broker/executor/base/turn_budget.hpp"
#include "broker/executor/memory/memory_uses.hpp"
#include "broker/executor/streams/stream_set.hpp"

namespace mpsshim::broker {

class SessionWaits {
 public:
  struct Waiting {
    StreamSet::Mark mark;
    bool completed = false;
    MemoryUses::Live uses;
    std::function<void()> act;
    [[nodiscard]] bool is_due() { return completed ? StreamSet::has_completed(mark) && MemoryUses::have_ended(uses) : StreamSet::has_issued(mark); }
  };

  void add(Waiting waiting) { waiting_.push_back(std::move(waiting)); }
  [[nodiscard]] std::size_t size() const { return waiting_.size(); }
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  void clear() { waiting_.clear(); }
  // Does what has become due, as far as the budget goes. False: nothing has. An act may add others, or clear all.
  bool act(TurnBudget& budget) {
    if (std::ranges::none_of(waiting_, &Waiting::is_due)) return false;
    std::vector<Waiting> waiting = std::exchange(waiting_, {});
    std::vector<Waiting> left;
    for (Waiting& entry : waiting) {
      if (!budget.is_spent() && entry.is_due()) {
        entry.act();
        (void)budget.look();
      } else {
        left.push_back(std::move(entry));
      }
    }
    for (Waiting& entry : waiting_) left.push_back(std::move(entry));  // what the acts have added
    waiting_ = std::move(left);
    return true;
  }

 private:
  std::vector<Waiting> waiting_;
};

}  // namespace mpsshim::broker
