// SPDX-License-Identifier: Apache-2.0
#include "broker/control/faults/trap_sense.hpp"

#include <utility>

namespace mpsshim::broker::control {

void TrapSense::begin(const CallWatch& calls, std::function<void()> found) {
  if (look_ || EventLoop::Clock::now() < ruled_out_until_) return;
  found_ = std::move(found);
  look(calls, std::nullopt, 1);
}

void TrapSense::rule_out() {
  ruled_out_until_ = EventLoop::Clock::now() + kExceptionCounts;
  end();
}

void TrapSense::look(const CallWatch& calls, std::optional<CallWatch::Instance> before, unsigned looks) {
  const std::optional<CallWatch::Instance> now = calls.find("cuStreamQuery");
  look_.reset();
  if (now && now == before) return std::exchange(found_, nullptr)();
  if (looks < kLooks) look_ = loop_.after(kQueryLimit, [this, &calls, now, looks] { look(calls, now, looks + 1); });
}

}  // namespace mpsshim::broker::control
