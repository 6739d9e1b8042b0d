// SPDX-License-Identifier: Apache-2.0
// Whose thread a session's tables belong to: the worker that visits it. What a session asks of its worker is this alone, so that sessions need not
// know workers.
#pragma once

#include <functional>

namespace mpsshim::broker {

class SessionOwner {
 public:
  // Runs `act` in the owner's thread. Any thread; dropped if the executor ends first.
  virtual void post(std::function<void()> act) = 0;

 protected:
  ~SessionOwner() = default;
};

}  // namespace mpsshim::broker
