// SPDX-License-Identifier: Apache-2.0
// Whose driver call a thread is making, published in the table that the control process watches (broker/call_table.hpp), and where driver
// calls enter the executor's timeline (trace.hpp). A mark costs three relaxed stores in a cache line of the thread's own, a ScopedCall besides
// a look at whether there is a timeline. Marks nest: the inner one is the one that hangs.
#pragma once

#include <cstdint>

#include "broker/call_table.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

// Once, before the threads start that are to be watched; without it nothing is published.
void publish_calls(CallTable& table);
// From now on a thread that crashes says so in its slot before the process dies of it.
void note_crashes();

namespace detail {
inline thread_local constinit CallSlot* call_slot = nullptr;
[[nodiscard]] CallSlot& take_call_slot();
}  // namespace detail

class ScopedMark {
 public:
  ScopedMark(std::uint64_t session, CallName name, Patience patience = Patience::prompt)
      : slot_(detail::call_slot != nullptr ? *detail::call_slot : detail::take_call_slot()), previous_(slot_.call.load(std::memory_order_relaxed)) {
    slot_.count.store(slot_.count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    slot_.call.store(PublishedCall{session, name, patience}.packed(), std::memory_order_relaxed);
  }
  ScopedMark(const ScopedMark&) = delete;
  ~ScopedMark() { slot_.call.store(previous_, std::memory_order_relaxed); }

 private:
  CallSlot& slot_;
  const std::uint64_t previous_;
};

class ScopedCall {
 public:
  // `amount`: what the timeline shows besides, such as {"bytes", 4096}.
  ScopedCall(std::uint64_t session, CallName name, proto::trace::Argument amount = {})
      : mark_(session, name), span_("driver", name.text(), {"session", session}, amount) {}
  ScopedCall(const ScopedCall&) = delete;

 private:
  const ScopedMark mark_;
  const proto::trace::Span span_;
};

}  // namespace mpsshim::broker
