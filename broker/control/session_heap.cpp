// SPDX-License-Identifier: Apache-2.0
// SessionManager's part for the device's heap, which belongs to a context: what kernels of clients that have ended have left there nobody can give
// back, and the next client's malloc() may find its contents. So an executor whose last client of that heap has ended is renewed in a quiet moment:
// when it serves nobody, or all whom it serves come to rest at once, and lose nothing. Whoever is busy is waited for, not held up: it is tried
// again, ever more rarely.
#include <algorithm>
#include <utility>

#include "broker/control/session_manager.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr std::chrono::milliseconds kFirstTry{100};
constexpr std::chrono::milliseconds kRarestTry{60'000};
constexpr std::chrono::milliseconds kNextLook{5};
constexpr std::chrono::seconds kNextLimit{30};      // for the next lives to be ready: then clients wait for a whole start
constexpr std::chrono::milliseconds kPatience{50};  // for sessions to come to rest
}  // namespace

void SessionManager::heap_left(const Executor& executor) {
  if (heaps_left_.empty()) heap_left_at_ = EventLoop::Clock::now();
  if (heaps_left_.insert(executor.id()).second) {
    log_info("Executor {}: kernels of clients that have ended may have left memory on the device's heap; it is renewed when nobody is at work.",
             executor.label());
  }
  heap_pause_ = kFirstTry;
  arm_heap_renewal();
}

// Clients that come and go quickly do not put it off.
void SessionManager::arm_heap_renewal() {
  const EventLoop::Clock::time_point due = EventLoop::Clock::now() + heap_pause_;
  if (heap_due_ && *heap_due_ <= due) return;
  heap_due_ = due;
  heap_timer_ = loop_.after(heap_pause_, [this] { begin_heap_renewal(); });
}

void SessionManager::put_off_heap_renewal() {
  heap_pause_ = std::min(heap_pause_ * 2, kRarestTry);
  arm_heap_renewal();
}

// The last session has ended: the moment that costs least, and where clients follow each other closely the only one.
void SessionManager::renew_heaps_without_sessions() {
  if (heaps_left_.empty() || !sessions_.empty() || EventLoop::Clock::now() - heap_left_at_ < kFirstTry) return;
  begin_heap_renewal();
}

bool SessionManager::may_renew_heaps() const {
  if (rest_ || on_renewed_ || on_retired_ || is_unsettled()) return false;
  return std::ranges::all_of(pool_.all(),
                             [](const auto& entry) { return entry.second->state() == ExecutorState::active && entry.second->busy().empty(); });
}

void SessionManager::begin_heap_renewal() {
  heap_due_.reset();
  heap_timer_.reset();
  if (quitting_ || heaps_left_.empty()) return;
  if (!may_renew_heaps()) return put_off_heap_renewal();
  if (sessions_.empty()) return bring_to_rest({kPatience, false}, [this](const std::string& why) { end_heap_renewal(why); });
  heap_due_ = EventLoop::Clock::time_point{};  // it has begun
  for (const auto& [id, executor] : pool_.all()) executor->prepare_next();
  await_heap_renewal(EventLoop::Clock::now() + kNextLimit);
}

// The next lives are made ready while the present ones serve.
void SessionManager::await_heap_renewal(EventLoop::Clock::time_point until) {
  heap_due_.reset();
  if (quitting_ || heaps_left_.empty()) return;
  const bool is_ready = std::ranges::all_of(pool_.all(), [](const auto& entry) { return entry.second->has_next(); });
  if (!is_ready && EventLoop::Clock::now() < until) {
    heap_due_ = EventLoop::Clock::time_point{};
    heap_timer_ = loop_.after(kNextLook, [this, until] { await_heap_renewal(until); });
    return;
  }
  bring_to_rest({kPatience, false}, [this](const std::string& why) { end_heap_renewal(why); });
}

void SessionManager::end_heap_renewal(const std::string& why) {
  if (!why.empty()) {
    for (const auto& [id, executor] : pool_.all()) executor->drop_next();
    log_info("What kernels of clients that have ended have left on the device's heap stays for now: {}.", why);
    return put_off_heap_renewal();
  }
  const auto began = EventLoop::Clock::now();
  renew_executors([began, count = sessions_.size()] {
    log_info("The executors were renewed in {:.1f} ms for {} sessions: the device's heap is blank again.",
             std::chrono::duration<double, std::milli>(EventLoop::Clock::now() - began).count(), count);
  });
}

}  // namespace mpsshim::broker::control
