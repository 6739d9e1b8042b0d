// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/window/gates.hpp"

#include <algorithm>
#include <chrono>

#include "proto/futex.hpp"

namespace mpsshim::broker {

namespace {
constexpr unsigned kSpinsAtGate = 2'000;
constexpr std::chrono::microseconds kPauseAtGate{50};
}  // namespace

Gates::Gates(unsigned workers) : gates_(workers) {
  for (Gate& gate : gates_) gate.barrier_ = &barrier_;
}

void Gates::close() {
  for (Gate& gate : gates_) gate.was_refused_.store(false, std::memory_order_relaxed);
  bar();  // pairs with Gate::enter
  wait_until_left();
}

void Gates::wait_until_left() {
  for (Gate& gate : gates_) {
    for (unsigned spins = 0; gate.issuing_.load(std::memory_order_seq_cst); ++spins) {
      if (spins < kSpinsAtGate) {
        proto::cpu_relax();
      } else {
        std::this_thread::sleep_for(kPauseAtGate);  // a driver call takes long; the worker leaves as soon as it returns
      }
    }
  }
}

bool Gates::keep_out() const {
  return std::any_of(gates_.begin(), gates_.end(), [](const Gate& gate) { return gate.was_refused_.load(std::memory_order_relaxed); });
}

}  // namespace mpsshim::broker
