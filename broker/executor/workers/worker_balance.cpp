// SPDX-License-Identifier: Apache-2.0
// Which sessions a worker gives away, and to whom.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "broker/executor/base/issue_lock.hpp"
#include "broker/executor/sessions/session.hpp"
#include "broker/executor/workers/worker.hpp"
#include "broker/executor/workers/worker_set.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::chrono::milliseconds kRebalanceInterval{5};

// What the sessions have done since the last time.
struct Done {
  StreamSet::Pace pace;
  unsigned percent = 0;  // of the worker's time
};
struct DoneByAll {
  std::vector<Done> sessions;
  std::uint64_t operations = 0;
  std::size_t at_work = 0;
  std::chrono::nanoseconds of_others{0};  // who has no short runs
};

DoneByAll take_done(std::span<const std::shared_ptr<Session>> sessions, std::chrono::nanoseconds since) {
  DoneByAll all;
  for (const std::shared_ptr<Session>& session : sessions) {
    const std::chrono::nanoseconds time = std::exchange(session->turn_time, std::chrono::nanoseconds(0));
    all.sessions.push_back({session->take_pace(), static_cast<unsigned>(100 * time / since)});
    const StreamSet::Pace& pace = all.sessions.back().pace;
    all.operations += pace.operations;
    all.at_work += pace.operations != 0 ? 1 : 0;
    if (!has_short_runs(pace)) all.of_others += time;
  }
  return all;
}

}  // namespace

// Sessions whose pace of late says so go to another worker.
void Worker::rebalance() {
  const Clock::time_point now = Clock::now();
  const Clock::duration since = now - rebalanced_.load(std::memory_order_relaxed);
  if (parts_.stress.move_ms != 0) {
    if (since < std::chrono::milliseconds(parts_.stress.move_ms)) return;
    rebalanced_.store(now, std::memory_order_relaxed);
    return scatter();
  }
  if (since < kRebalanceInterval) return;
  const auto elapsed_ms = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(since).count());
  rebalanced_.store(now, std::memory_order_relaxed);
  const unsigned busy_percent = idle_.take_busy_percent(now);
  const Clock::duration locked = std::min<Clock::duration>(IssueLock::take_waited(), since);
  const unsigned delayed_percent = note_work(busy_percent, locked, now, since);
  const DoneByAll all = take_done(sessions_, since);
  shortage_.note(parts_.pressure.is_high(now) ? busy_percent : 0, static_cast<unsigned>(100 * locked / since), all.at_work);
  const std::uint64_t of_all = all.operations;
  const std::chrono::nanoseconds of_others = all.of_others + std::exchange(time_of_gone_, std::chrono::nanoseconds(0));
  const unsigned others_percent = note_others(static_cast<unsigned>(100 * of_others / since));
  std::uint64_t kept = of_all;
  unsigned given_percent = 0;  // of this worker's time
  std::size_t waiting = 0;
  std::vector<std::shared_ptr<Session>> may_go;
  for (std::size_t i = 0, looked_at = 0; i < sessions_.size();) {
    const std::shared_ptr<Session> session = sessions_[i];
    const auto [done, time_percent] = all.sessions[looked_at++];
    const bool waits = waits_often(done, elapsed_ms);
    session->home().note_waiting(waits, now);
    const bool is_at_home = session->home().worker() == index_;
    const auto busy_by_operations = static_cast<unsigned>(of_all == 0 ? busy_percent : busy_percent * kept / of_all);
    const AtWorker at{.is_at_home = is_at_home,
                      .full_turns = std::exchange(session->full_turns, 0),
                      .busy_percent = std::min(busy_by_operations, busy_percent - std::min(busy_percent, given_percent)),
                      .time_percent = time_percent,
                      .others_percent = is_at_home ? others_percent : set_.others_percent(session->home().worker(), now),
                      .delayed_percent = delayed_percent};
    Placement place = placement(done, elapsed_ms, at);
    if (place == Placement::stay && !is_at_home && !has_short_runs(done) && time_percent != 0 && wants_relief(work_percent(now), now - relieved_)) {
      place = Placement::elsewhere;
    }
    if (place == Placement::stay || session->is_closing() || !set_.move(session, place, expected_percent(done, elapsed_ms, at), now)) {
      waiting += is_at_home && session->home().has_waited(now) ? 1 : 0;
      if (is_at_home && waits && session->home().may_change(now)) may_go.push_back(session);
      ++i;
      continue;
    }
    if (!is_at_home && place == Placement::elsewhere) relieved_ = now;
    kept -= done.operations;
    given_percent += time_percent;
    drop(i);
  }
  waiting_.store(waiting, std::memory_order_relaxed);
  while (!may_go.empty() && find_better_home(may_go.back(), waiting)) {
    may_go.pop_back();
    waiting_.store(--waiting, std::memory_order_relaxed);
  }
}

// For tests: half of the sessions get another home, or another worker, or both.
void Worker::scatter() {
  for (std::size_t i = sessions_.size(); i-- > 0;) {
    const std::shared_ptr<Session> session = sessions_[i];
    if (scattering_() / 2 % 2 == 0 || session->is_closing()) continue;
    if (session->home().has_few_streams()) session->home().change_to(static_cast<unsigned>(scattering_() / 2 % (parts_.sides.count() + 1)));
    const unsigned worker = scattering_() / 2 % 2 == 0 ? session->home().worker() : static_cast<unsigned>(scattering_() / 2 % set_.count());
    if (!set_.move_to(session, worker)) continue;
    parts_.stress.sessions_moved.fetch_add(1, std::memory_order_relaxed);
    drop(i);
  }
}

// False: none is better.
bool Worker::find_better_home(const std::shared_ptr<Session>& session, std::size_t waiting) {
  const std::optional<unsigned> home = set_.better_home(waiting, session->streams().count(), rebalanced_.load(std::memory_order_relaxed));
  if (!home && needs_more_homes(waiting)) parts_.sides.want();
  if (!home || session->is_closing()) return false;
  const unsigned before = session->home().worker();
  session->home().change_to(*home);
  if (!set_.move(session, Placement::home, 0, rebalanced_.load(std::memory_order_relaxed))) {  // it is being closed
    session->home().change_to(before);
    return false;
  }
  log_info("Session {}: waits often, as {} others do: worker {} serves it from now on", session->id(), waiting - 1, *home);
  drop(static_cast<std::size_t>(std::find(sessions_.begin(), sessions_.end(), session) - sessions_.begin()));
  return true;
}

std::size_t Worker::waiting(Clock::time_point now) const {
  return now - rebalanced_.load(std::memory_order_relaxed) < SessionHome::kWaitingCounts ? waiting_.load(std::memory_order_relaxed) : 0;
}

// Of the last ten looks or so: one in which a session's wait has not come yet behind its launch says nothing.
unsigned Worker::note_others(unsigned percent) {
  constexpr unsigned kLooks = 8;
  others_eighths_ += percent - others_eighths_ / kLooks;
  const unsigned mean = others_eighths_ / kLooks;
  others_percent_.store(mean, std::memory_order_relaxed);
  return mean;
}

// The percentage of its time that it stood without a core. That was no work, though something was to be done. Nor, where launches are gathered and
// there are more threads than cores, was the time in front of the lock of a driver's context: one more worker would stand there as well, on a core
// that a client needs.
unsigned Worker::note_work(unsigned busy_percent, Clock::duration locked, Clock::time_point now, Clock::duration since) {
  constexpr std::chrono::milliseconds kMemory{15};
  const Clock::duration delay = delay_ ? std::min<Clock::duration>(delay_->take(), since) : Clock::duration(0);
  parts_.pressure.note(now, delay, since);
  const bool has_gathered = std::exchange(has_gathered_, false) && parts_.pressure.is_high(now);
  const Clock::duration stood = std::min<Clock::duration>(has_gathered ? delay + locked : delay, since);
  const auto delayed_percent = static_cast<unsigned>(100 * stood / since);
  const unsigned work_percent = busy_percent * (100 - delayed_percent) / 100;
  const Clock::duration mean = (work_percent_.load(std::memory_order_relaxed) * Clock::duration(kMemory) + work_percent * since) / 100;
  work_percent_.store(static_cast<unsigned>(100 * mean / (kMemory + since)), std::memory_order_relaxed);
  return delayed_percent;
}

unsigned Worker::work_percent(Clock::time_point now) const {
  return now - rebalanced_.load(std::memory_order_relaxed) < SessionHome::kWaitingCounts ? work_percent_.load(std::memory_order_relaxed) : 0;
}

unsigned Worker::others_percent(Clock::time_point now) const {
  return now - rebalanced_.load(std::memory_order_relaxed) < SessionHome::kWaitingCounts ? others_percent_.load(std::memory_order_relaxed) : 0;
}

}  // namespace mpsshim::broker
