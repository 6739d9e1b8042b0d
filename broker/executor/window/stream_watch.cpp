// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/window/stream_watch.hpp"

#include <algorithm>
#include <utility>

namespace mpsshim::broker {

namespace {
constexpr std::chrono::seconds kSecond{1};
}

bool StreamWatch::is_busy(std::uint32_t index) const {
  const StreamProgress& stream = progress_.stream[index];
  return stream.session.load(std::memory_order_relaxed) != 0 &&
         stream.completed.load(std::memory_order_acquire) != stream.issued.load(std::memory_order_acquire);
}

void StreamWatch::set_pressing(bool pressing, Clock::duration waited) {
  const std::lock_guard lock(mutex_);
  period_ = std::max<Clock::duration>(kSecond, waited);
  if (pressing_.exchange(pressing, std::memory_order_relaxed) == pressing) return;
  last_scan_ = {};
  is_hopeless_ = false;
  holds_functions_.store(pressing, std::memory_order_relaxed);
  if (pressing) return;
  const std::uint32_t count = used();
  for (std::uint32_t i = 0; i < count; ++i) {
    stream_[i].held.store(false, std::memory_order_relaxed);
    stream_[i].waits.store(false, std::memory_order_relaxed);
    stream_[i].has_turn.store(false, std::memory_order_relaxed);
    stream_[i].waited = false;
  }
}

void StreamWatch::give_turns() {
  const std::lock_guard lock(mutex_);
  const std::uint32_t count = used();
  for (std::uint32_t i = 0; i < count; ++i) {
    Stream& stream = stream_[i];
    const bool waits = stream.waits.exchange(false, std::memory_order_relaxed) || std::exchange(stream.waited, false);
    if (stream.held.exchange(false, std::memory_order_relaxed) || waits) stream.has_turn.store(true, std::memory_order_relaxed);
  }
}

void StreamWatch::observe(Clock::time_point now) {
  if (pressing_.load(std::memory_order_relaxed)) return;  // then the window's thread looks all the time
  const std::lock_guard lock(mutex_);
  (void)scan_locked(now);
}

StreamWatch::Scan StreamWatch::scan(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  return scan_locked(now);
}

StreamWatch::Scan StreamWatch::scan_locked(Clock::time_point now) {
  Scan scan;
  for (auto& [session, account] : accounts_) account.is_delayed = false;
  const std::uint32_t count = used();
  const bool pressing = pressing_.load(std::memory_order_relaxed);
  const Clock::duration hopeless = share_of(period_);
  bool is_hopeless = false;
  for (std::uint32_t i = 0; i < count; ++i) {
    Stream& stream = stream_[i];
    const std::uint64_t session = progress_.stream[i].session.load(std::memory_order_relaxed);
    const bool busy = is_busy(i);
    const bool is_long = busy && look(i, now);
    if (!busy && stream.since != Clock::time_point{}) end_stretch(stream);
    scan.any_busy |= busy;
    scan.any_long |= is_long;
    if (!pressing) continue;
    const bool is_too_long = is_long && now - stream.since > hopeless;
    is_hopeless |= is_too_long;
    if (is_hopeless_ && !is_too_long) {
      stream.held.store(false, std::memory_order_relaxed);
    } else if (is_long && !stream.is_let_go.load(std::memory_order_relaxed)) {
      stream.held.store(true, std::memory_order_relaxed);
    }
    const bool asks = stream.waits.exchange(false, std::memory_order_relaxed);
    stream.waited |= asks;
    if (!busy && (asks || stream.held.load(std::memory_order_relaxed)) && session != 0) accounts_[session].is_delayed = true;
  }
  last_look_ = now;
  if (pressing) {
    settle_accounts(now);
    is_hopeless_ = is_hopeless;
    holds_functions_.store(!is_hopeless, std::memory_order_relaxed);
  }
  last_scan_ = now;
  return scan;
}

bool StreamWatch::look(std::uint32_t index, Clock::time_point now) {
  Stream& stream = stream_[index];
  const std::uint32_t completed = progress_.stream[index].completed.load(std::memory_order_relaxed);
  if (stream.since != Clock::time_point{} && stream.completed != completed) end_stretch(stream);
  if (stream.since == Clock::time_point{}) {
    stream.completed = completed;
    stream.since = now;
  }
  const std::uint32_t function = stream.function.load(std::memory_order_relaxed);
  const Length length = length_of(now - stream.since);
  if (length == Length::small) return function != 0 && length_[function].load(std::memory_order_relaxed) != Length::small;
  if (function != 0 && length > length_[function].load(std::memory_order_relaxed)) length_[function].store(length, std::memory_order_relaxed);
  return true;
}

StreamWatch::Length StreamWatch::length_of(Clock::duration run) const {
  if (run < limits_.long_work) return Length::small;
  return run < limits_.very_long_work ? Length::is_long : Length::very_long;
}

// It is known to have run until the last look; who looks may have been late this time.
void StreamWatch::end_stretch(Stream& stream) {
  const std::uint32_t function = stream.function.load(std::memory_order_relaxed);
  if (function != 0) length_[function].store(length_of(last_look_ - stream.since), std::memory_order_relaxed);
  stream.since = {};
}

void StreamWatch::found_long(std::uint32_t index, Clock::time_point since) {
  const std::lock_guard lock(mutex_);
  Stream& stream = stream_[index];
  const std::uint32_t function = stream.function.load(std::memory_order_relaxed);
  Length known = Length::small;
  if (function != 0) length_[function].compare_exchange_strong(known, Length::is_long, std::memory_order_relaxed);
  if (stream.since != Clock::time_point{}) return;
  stream.completed = progress_.stream[index].completed.load(std::memory_order_relaxed);
  stream.since = since;
}

StreamWatch::Clock::duration StreamWatch::share_of(Clock::duration time) const {
  return std::max<Clock::duration>(limits_.hold_per_second, time * limits_.hold_per_second.count() / std::chrono::milliseconds(kSecond).count());
}

// Charges the time since the last scan to whoever stood idle; whose share is used up is let go until he has a share again.
void StreamWatch::settle_accounts(Clock::time_point now) {
  bool changed = false;
  for (auto entry = accounts_.begin(); entry != accounts_.end();) {
    Account& account = entry->second;
    if (now - account.began >= period_) {
      changed |= account.is_let_go;
      const bool is_delayed = account.is_delayed;
      account = {now, {}, is_delayed, false};
      if (!is_delayed) {
        entry = accounts_.erase(entry);
        continue;
      }
    }
    if (account.is_delayed && last_scan_ != Clock::time_point{}) account.taken += now - last_scan_;
    const bool is_let_go = account.taken > share_of(now - account.began);
    changed |= is_let_go != account.is_let_go;
    account.is_let_go = is_let_go;
    ++entry;
  }
  if (!changed) return;
  const std::uint32_t count = used();
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto found = accounts_.find(progress_.stream[i].session.load(std::memory_order_relaxed));
    const bool let_go = found != accounts_.end() && found->second.is_let_go;
    stream_[i].is_let_go.store(let_go, std::memory_order_relaxed);
    if (let_go) stream_[i].held.store(false, std::memory_order_relaxed);
  }
}

std::optional<StreamWatch::Blocker> StreamWatch::blocker(Clock::time_point now, std::uint64_t but) const {
  const std::lock_guard lock(mutex_);
  std::optional<Blocker> oldest;
  const std::uint32_t count = used();
  for (std::uint32_t i = 0; i < count; ++i) {
    const Stream& stream = stream_[i];
    const std::uint64_t session = progress_.stream[i].session.load(std::memory_order_relaxed);
    if (session == 0 || (but != 0 && session == but) || stream.since == Clock::time_point{} || now - stream.since < limits_.long_work) continue;
    if (!oldest || stream.since < oldest->since) oldest = Blocker{session, stream.since};
  }
  return oldest;
}

}  // namespace mpsshim::broker
