// SPDX-License-Identifier: Apache-2.0
#include "broker/control/restarts/heap_renewal.hpp"

#include <algorithm>
#include <utility>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{250};               // whether anybody has done something
constexpr milliseconds kSilence{1'000};          // of all sessions
constexpr milliseconds kPatience{50};            // for sessions to come to rest
constexpr milliseconds kHeapLook{5};             // whether the next lives are ready
constexpr milliseconds kHeapLookLimit{30'000};   // then it is given up
constexpr milliseconds kBesideSessions{10'000};  // from one renewal or try to the next; after each try in vain twice as long
constexpr milliseconds kRarest{600'000};
constexpr milliseconds kCommandOverHeapsLimit{60'000};  // while a command restarts them
constexpr milliseconds kNewcomerWaits{100};             // for those of the heap that are ending
constexpr int kShare = 10;                              // renewals without sessions take a tenth of the time at most

}  // namespace

void HeapRenewal::session_left(const ClientSession& session) {
  const auto shares_heap = [&](const auto& entry) {
    const ClientSession& other = entry.second;
    return other.id != session.id && other.executor == session.executor && other.in_executor() && other.uses_heap;
  };
  if (!session.uses_heap) return;
  session.executor->note_heap_remains();
  if (std::ranges::any_of(sessions_.all(), shares_heap)) return;
  const auto is_beside = [&](const auto& entry) { return entry.first != session.id && entry.second.executor == session.executor; };
  if (!session.executor->is_first() && std::ranges::none_of(sessions_.all(), is_beside)) return;  // it ends (ExecutorPool::release)
  Heap& heap = heaps_[session.executor->user()];
  if (heap.left.insert(session.executor->id()).second) {
    log_info("Executor {}: kernels of clients that have ended may have left memory on the device's heap; it is renewed when nobody is at work.",
             session.executor->label());
  }
  heap.silent_since = EventLoop::Clock::now();
  look_soon();
}

void HeapRenewal::look_soon() {
  const bool are_left = std::ranges::any_of(heaps_, [](const auto& entry) { return !entry.second.left.empty(); });
  if (!are_left || std::exchange(look_is_due_, true)) return;
  loop_.defer([this] {
    look_is_due_ = false;
    look_at_all();
  });
}

bool HeapRenewal::is_alone(uid_t house) const {
  return std::ranges::none_of(sessions_.all(), [&](const auto& entry) { return entry.second.in_executor() && sessions_.is_of(entry.second, house); });
}

bool HeapRenewal::may_renew(uid_t house) const {
  if (!restarts_.is_idle() || restarts_.is_unsettled(house)) return false;
  return std::ranges::all_of(pool_.all(), [&](const auto& entry) {
    return entry.first.user != house || (entry.second->state() == ExecutorState::active && entry.second->busy().empty());
  });
}

// Changes with whatever a client asks for. It may write what it likes there, to no one's harm: it puts the renewal off.
std::uint64_t HeapRenewal::activity(uid_t house) const {
  std::uint64_t sum = 0;
  for (const auto& [id, session] : sessions_.all()) {
    if (!sessions_.is_of(session, house)) continue;
    sum = sum * 31 + id + static_cast<std::uint64_t>(session.phase);
    if (session.channel) sum = sum * 31 + session.channel->written_bytes();
  }
  return sum;
}

bool HeapRenewal::is_silent(uid_t house, Heap& heap) {
  const auto now = EventLoop::Clock::now();
  const std::uint64_t seen = std::exchange(heap.activity, activity(house));
  if (seen != heap.activity || !may_renew(house)) heap.silent_since = now;
  return now - heap.silent_since >= kSilence;
}

// The house whose turn was last comes last.
void HeapRenewal::look_at_all() {
  std::vector<uid_t> houses;
  for (const auto& [house, heap] : heaps_) houses.push_back(house);
  std::rotate(houses.begin(), std::upper_bound(houses.begin(), houses.end(), last_), houses.end());
  for (const uid_t house : houses) look_at(house, heaps_.at(house));
}

void HeapRenewal::look_at(uid_t house, Heap& heap) {
  if (step_ != Step::none) return;  // behind which all are looked at
  heap.timer.reset();
  if (restarts_.is_quitting() || heap.left.empty()) return;
  const auto now = EventLoop::Clock::now();
  if (now < waits_until_) {
    // a command's turn
  } else if (is_alone(house)) {
    if (now >= heap.next_alone && may_renew(house)) return renew(house);
  } else if (const ClientSession* obstacle = sessions_.find(heap.obstacle); obstacle == nullptr && std::exchange(heap.obstacle, 0) != 0) {
    heap.pause = kBesideSessions;
    heap.next_beside = std::min(heap.next_beside, now + heap.pause);
  } else if (is_silent(house, heap) && now >= heap.next_beside) {
    step_ = Step::preparing;
    last_ = house;
    return await_next_lives(house, now + kHeapLookLimit);
  }
  const auto due = std::max(waits_until_, is_alone(house) ? heap.next_alone : heap.next_beside - kSilence - kLook);
  const auto wait = std::max(kLook, std::chrono::ceil<milliseconds>(due - now));
  heap.timer = loop_.after(wait, [this, house] { look_at(house, heaps_.at(house)); });
}

// They are made ready while the present ones serve. Who has become active meanwhile is left alone.
void HeapRenewal::await_next_lives(uid_t house, EventLoop::Clock::time_point until) {
  Heap& heap = heaps_.at(house);
  if (!is_silent(house, heap)) return give_up(house, "its clients are at work");
  if (pool_.prepare_next_lives(house)) return renew(house);
  if (EventLoop::Clock::now() >= until) return give_up(house, "no other executor could be made ready");
  heap.timer = loop_.after(kHeapLook, [this, house, until] { await_next_lives(house, until); });
}

void HeapRenewal::renew(uid_t house) {
  step_ = Step::renewing;
  last_ = house;
  heaps_.at(house).timer.reset();
  const auto began = EventLoop::Clock::now();
  const auto rested = [this, house, began](const std::string& why) {
    if (!why.empty()) {
      if (restarts_.obstacle() != 0) heaps_.at(house).obstacle = restarts_.obstacle();
      return give_up(house, why);
    }
    const auto count = std::ranges::count_if(sessions_.all(), [&](const auto& entry) { return sessions_.is_of(entry.second, house); });
    restarts_.renew_executors([this, house, began, count] { renewed(house, began, static_cast<std::size_t>(count)); }, house);
  };
  restarts_.bring_to_rest({.patience = kPatience}, rested, house);
}

void HeapRenewal::renewed(uid_t house, EventLoop::Clock::time_point began, std::size_t sessions) {
  Heap& heap = heaps_.at(house);
  const auto now = EventLoop::Clock::now();
  log_info("The executors were renewed in {:.1f} ms for {} sessions: the device's heap is blank again.",
           std::chrono::duration<double, std::milli>(now - began).count(), sessions);
  heap.pause = kBesideSessions;
  heap.next_alone = now + (now - began) * (kShare - 1);
  heap.next_beside = now + heap.pause;
  end_step();
}

void HeapRenewal::give_up(uid_t house, const std::string& why) {
  for (const auto& [id, executor] : pool_.all()) {
    if (id.user == house) executor->drop_next();
  }
  Heap& heap = heaps_.at(house);
  heap.pause = std::clamp(heap.pause * 2, kBesideSessions, kRarest);
  heap.next_beside = EventLoop::Clock::now() + (heap.obstacle != 0 ? kRarest : heap.pause);
  heap.next_alone = EventLoop::Clock::now() + kLook;
  log_info("What kernels of clients that have ended have left on the device's heap stays for now: {}.", why);
  end_step();
}

void HeapRenewal::leave_to_command(std::function<void()> then) {
  if (step_ == Step::renewing) return commands_.push_back(std::move(then));
  step_ = Step::none;
  waits_until_ = EventLoop::Clock::now() + kCommandOverHeapsLimit;
  for (auto& [house, heap] : heaps_) heap.timer.reset();
  look_soon();
  then();
}

void HeapRenewal::end_step() {
  step_ = Step::none;
  for (const auto& command : std::exchange(commands_, {})) loop_.defer([this, command] { leave_to_command(command); });
  look_soon();
}

bool HeapRenewal::holds_back(const ClientSession& newcomer) {
  if (newcomer.has_lived || !restarts_.is_idle()) return false;
  const uid_t house = newcomer.executor->user();
  const Heap& heap = heaps_[house];
  if (EventLoop::Clock::now() < std::max(heap.next_alone, waits_until_)) return false;
  bool is_used = !heap.left.empty();
  for (const auto& [id, other] : sessions_.all()) {
    if (!other.in_executor() || other.executor->user() != house) continue;
    if (other.phase != SessionPhase::closing || other.executor->is_busy(id)) return false;
    is_used |= other.uses_heap;
  }
  if (!is_used) return false;
  if (!newcomer_timer_) newcomer_timer_ = loop_.after(kNewcomerWaits, [this] { end_newcomers_wait(); });
  return true;
}

void HeapRenewal::end_newcomers_wait() {
  newcomer_timer_.reset();
  for (const auto& [id, executor] : pool_.all()) {
    if (executor->state() == ExecutorState::active) serve_(*executor);
  }
}

}  // namespace mpsshim::broker::control
