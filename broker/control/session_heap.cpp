// SPDX-License-Identifier: Apache-2.0
// SessionManager's part for the device's heap, which belongs to a context: what kernels of clients that have ended have left there nobody can give
// back, and the next client's malloc() may find its contents. So executors are renewed once whoever launched such kernels has ended: at once where
// no session is in any of them, and else when all sessions have been silent for a second and lose nothing. A session at work is never disturbed.
// The executors of a heap that nobody has taken memory of are not renewed.
#include <algorithm>
#include <utility>

#include "broker/control/session_manager.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{250};               // whether anybody has done something
constexpr milliseconds kSilence{1'000};          // of all sessions
constexpr milliseconds kPatience{50};            // for sessions to come to rest
constexpr milliseconds kHeapLook{5};             // whether the next lives are ready
constexpr milliseconds kHeapLookLimit{30'000};       // then it is given up
constexpr milliseconds kBesideSessions{10'000};  // from one renewal or try to the next; after each try in vain twice as long
constexpr milliseconds kRarest{600'000};
constexpr milliseconds kCommandLimit{60'000};  // while a command restarts them
constexpr milliseconds kNewcomerWaits{100};    // for those of the heap that are ending
constexpr int kShare = 10;                     // renewals without sessions take a tenth of the time at most

}  // namespace

// It is over in the executor.
void SessionManager::leave_heap(const Session& session) {
  const auto shares_heap = [&](const auto& entry) {
    const Session& other = entry.second;
    return other.id != session.id && other.executor == session.executor && other.in_executor() && other.uses_heap;
  };
  if (!session.uses_heap || std::ranges::any_of(sessions_, shares_heap)) return;
  if (heap_.left.insert(session.executor->id()).second) {
    log_info("Executor {}: kernels of clients that have ended may have left memory on the device's heap; it is renewed when nobody is at work.",
             session.executor->label());
  }
  heap_.silent_since = EventLoop::Clock::now();
  look_at_heaps_soon();
}

// A session has ended: perhaps it was the last one, or what stood in the way.
void SessionManager::look_at_heaps_soon() {
  if (heap_.left.empty() || std::exchange(heap_.is_deferred, true)) return;
  loop_.defer([this] {
    heap_.is_deferred = false;
    look_at_heaps();
  });
}

bool SessionManager::is_alone() const {
  return std::ranges::none_of(sessions_, [](const auto& entry) { return entry.second.in_executor(); });
}

bool SessionManager::may_renew_heaps() const {
  if (quitting_ || rest_ || on_renewed_ || on_retired_ || is_unsettled()) return false;
  return std::ranges::all_of(pool_.all(),
                             [](const auto& entry) { return entry.second->state() == ExecutorState::active && entry.second->busy().empty(); });
}

// Changes with whatever a client asks for. It may write what it likes there, to no one's harm: it puts the renewal off.
std::uint64_t SessionManager::activity() const {
  std::uint64_t sum = next_session_;
  for (const auto& [id, session] : sessions_) {
    sum = sum * 31 + id + static_cast<std::uint64_t>(session.phase);
    if (session.channel) sum = sum * 31 + session.channel->written_bytes();
  }
  return sum;
}

bool SessionManager::is_silent() {
  const auto now = EventLoop::Clock::now();
  const std::uint64_t seen = std::exchange(heap_.activity, activity());
  if (seen != heap_.activity || !may_renew_heaps()) heap_.silent_since = now;
  return now - heap_.silent_since >= kSilence;
}

void SessionManager::look_at_heaps() {
  if (heap_.step != HeapStep::none) return;
  heap_.timer.reset();
  if (quitting_ || heap_.left.empty()) return;
  const auto now = EventLoop::Clock::now();
  if (is_alone()) {
    if (now >= heap_.next_alone && may_renew_heaps()) return renew_heaps();
  } else if (const Session* obstacle = find(heap_.obstacle); obstacle == nullptr && std::exchange(heap_.obstacle, 0) != 0) {
    heap_.pause = kBesideSessions;
    heap_.next_beside = std::min(heap_.next_beside, now + heap_.pause);
  } else if (is_silent() && now >= heap_.next_beside) {
    heap_.step = HeapStep::preparing;
    return await_next_lives(now + kHeapLookLimit);
  }
  const auto due = is_alone() ? heap_.next_alone : heap_.next_beside - kSilence - kLook;
  const auto wait = std::max(kLook, std::chrono::ceil<milliseconds>(due - now));
  heap_.timer = loop_.after(wait, [this] { look_at_heaps(); });
}

// They are made ready while the present ones serve. Who has become active meanwhile is left alone.
void SessionManager::await_next_lives(EventLoop::Clock::time_point until) {
  if (!is_silent()) return give_up_heaps("its clients are at work");
  if (pool_.prepare_next_lives()) return renew_heaps();
  if (EventLoop::Clock::now() >= until) return give_up_heaps("no other executor could be made ready");
  heap_.timer = loop_.after(kHeapLook, [this, until] { await_next_lives(until); });
}

void SessionManager::renew_heaps() {
  heap_.step = HeapStep::renewing;
  heap_.timer.reset();
  const auto began = EventLoop::Clock::now();
  bring_to_rest({kPatience, false}, [this, began](const std::string& why) {
    if (!why.empty()) return give_up_heaps(why);
    renew_executors([this, began, count = sessions_.size()] {
      const auto now = EventLoop::Clock::now();
      log_info("The executors were renewed in {:.1f} ms for {} sessions: the device's heap is blank again.",
               std::chrono::duration<double, std::milli>(now - began).count(), count);
      heap_.pause = kBesideSessions;
      heap_.next_alone = now + (now - began) * (kShare - 1);
      heap_.next_beside = now + heap_.pause;
      end_heap_step();
    });
  });
}

void SessionManager::give_up_heaps(const std::string& why) {
  for (const auto& [id, executor] : pool_.all()) executor->drop_next();
  heap_.pause = std::clamp(heap_.pause * 2, kBesideSessions, kRarest);
  heap_.next_beside = EventLoop::Clock::now() + (heap_.obstacle != 0 ? kRarest : heap_.pause);
  heap_.next_alone = EventLoop::Clock::now() + kLook;
  log_info("What kernels of clients that have ended have left on the device's heap stays for now: {}.", why);
  end_heap_step();
}

void SessionManager::leave_heaps_to_command(std::function<void()> then) {
  if (heap_.step == HeapStep::renewing) return heap_.commands.push_back(std::move(then));
  heap_.step = HeapStep::none;
  heap_.next_alone = heap_.next_beside = EventLoop::Clock::now() + kCommandLimit;
  heap_.timer.reset();
  look_at_heaps_soon();
  then();
}

void SessionManager::end_heap_step() {
  heap_.step = HeapStep::none;
  for (const auto& command : std::exchange(heap_.commands, {})) loop_.defer([this, command] { leave_heaps_to_command(command); });
  look_at_heaps_soon();
}

// A newcomer that finds nobody but clients of the heap that are ending gets an executor with a blank one: it waits for their end, as it would
// natively for a context.
bool SessionManager::waits_for_blank_heap(const Session& newcomer) {
  if (newcomer.has_lived || quitting_ || rest_ || on_renewed_ || on_retired_) return false;
  if (EventLoop::Clock::now() < heap_.next_alone) return false;
  bool is_used = !heap_.left.empty();
  for (const auto& [id, other] : sessions_) {
    if (!other.in_executor()) continue;
    if (other.phase != SessionPhase::closing || other.executor->is_busy(id)) return false;
    is_used |= other.uses_heap;
  }
  if (!is_used) return false;
  if (!heap_.newcomer_timer) heap_.newcomer_timer = loop_.after(kNewcomerWaits, [this] { end_newcomers_wait(); });
  return true;
}

void SessionManager::end_newcomers_wait() {
  heap_.newcomer_timer.reset();
  for (const auto& [id, executor] : pool_.all()) {
    if (executor->state() == ExecutorState::active) serve_waiting(*executor);
  }
}

}  // namespace mpsshim::broker::control
