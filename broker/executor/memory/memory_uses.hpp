// SPDX-License-Identifier: Apache-2.0
// Jobs elsewhere (helpers, quiet windows) that name memory which was found to be a session's. As long as a job has its MemoryUse, what the session
// gives up meanwhile is not given back to the driver: whoever ends memory waits for the uses there were when it was given up, as for the work
// that was queued. The session's worker begins uses and asks; a use may end in any thread.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

namespace mpsshim::broker {

using MemoryUse = std::shared_ptr<const void>;

class MemoryUses {
 public:
  using Live = std::vector<std::weak_ptr<const void>>;

  [[nodiscard]] MemoryUse begin() {
    const MemoryUse use = std::make_shared<char>();
    forget_ended();
    uses_.push_back(use);
    return use;
  }
  [[nodiscard]] const Live& live() {
    forget_ended();
    return uses_;
  }
  [[nodiscard]] static bool have_ended(const Live& uses) {
    return std::ranges::all_of(uses, [](const auto& use) { return use.expired(); });
  }

 private:
  void forget_ended() {
    std::erase_if(uses_, [](const auto& use) { return use.expired(); });
  }

  Live uses_;
};

}  // namespace mpsshim::broker
