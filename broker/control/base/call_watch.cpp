// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/call_watch.hpp"

namespace mpsshim::broker::control {

std::optional<PublishedCall> CallWatch::look() {
  if (!memory_) return std::nullopt;
  std::optional<PublishedCall> hanging;
  for (std::uint32_t i = 0; i < kCallSlots; ++i) {
    const Seen now{table().slot[i].call.load(std::memory_order_relaxed), table().slot[i].count.load(std::memory_order_relaxed), 0};
    Seen& seen = seen_[i];
    if (now.call == 0 || now.call != seen.call || now.count != seen.count) {
      seen = now;
      continue;
    }
    const PublishedCall call = PublishedCall::from(now.call);
    if (++seen.looks >= (call.patience == Patience::patient ? kPatientLooks : kLooks) && !hanging) hanging = call;
  }
  return hanging;
}

std::optional<CallWatch::Instance> CallWatch::find(CallName name) const {
  if (!memory_) return std::nullopt;
  for (std::uint32_t i = 0; i < kCallSlots; ++i) {
    const CallSlot& slot = table().slot[i];
    const std::uint32_t count = slot.count.load(std::memory_order_relaxed);
    const std::uint64_t call = slot.call.load(std::memory_order_relaxed);
    if (call != 0 && PublishedCall::from(call).name.index() == name.index()) return Instance{i, count};
  }
  return std::nullopt;
}

std::optional<PublishedCall> CallWatch::crashed() const {
  if (!memory_) return std::nullopt;
  for (const CallSlot& slot : table().slot) {
    const std::uint64_t call = slot.call.load(std::memory_order_relaxed);
    if (slot.signal.load(std::memory_order_relaxed) != 0 && call != 0) return PublishedCall::from(call);
  }
  return std::nullopt;
}

}  // namespace mpsshim::broker::control
