// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/link/completion.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <utility>

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include "broker/executor/base/interrupts.hpp"
#include "broker/executor/base/thread_priority.hpp"
#include "broker/executor/link/client_channel.hpp"
#include "broker/log.hpp"
#include "broker/session_counts.hpp"
#include "proto/futex.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::chrono::microseconds kShortestPause{5};
constexpr std::chrono::microseconds kShortestPauseOfFew{50};
constexpr std::chrono::milliseconds kLongestPause{5};
constexpr std::chrono::seconds kSleepLimit{1};
constexpr std::chrono::milliseconds kAwakeCountPause{250};
// Of the time waited already.
constexpr int kPauseShare = 192;
constexpr int kPauseShareOfFew = 64;
constexpr unsigned kFewCores = 2;
constexpr std::uint64_t kOwnEvent = ~0ull;  // epoll data of the wake event; sessions have their ids

}  // namespace

bool has_spare_cores() {
  static const bool has = std::thread::hardware_concurrency() > kFewCores;
  return has;
}

std::chrono::nanoseconds completion_pause(std::chrono::nanoseconds waited, bool spare_cores) {
  const std::chrono::nanoseconds shortest = spare_cores ? kShortestPause : kShortestPauseOfFew;
  return std::clamp<std::chrono::nanoseconds>(waited / (spare_cores ? kPauseShare : kPauseShareOfFew), shortest, kLongestPause);
}

Completion::Completion(const CorePressure& pressure)
    : epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      pressure_(pressure),
      spare_cores_(has_spare_cores()) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = kOwnEvent;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_event_.get(), &event);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "completion");
    loop();
  });
}

Completion::~Completion() {
  stopping_.store(true, std::memory_order_relaxed);
  eventfd_write(wake_event_.get(), 1);
  thread_.join();
}

void Completion::add(std::uint64_t session, ClientChannel& channel, SessionCounts& counts, std::function<void()> wake_worker) {
  std::lock_guard lock(mutex_);
  const proto::ChannelHeader& header = channel.header();
  sessions_[session] = {.channel = &channel,
                        .counts = &counts,
                        .wake_worker = std::move(wake_worker),
                        .awake_waits = header.awake_waits.load(std::memory_order_relaxed),
                        .awake_wait_ns = header.awake_wait_ns.load(std::memory_order_relaxed),
                        .awake_counted = Clock::now()};
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;  // never read: see Worker
  event.data.u64 = session;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, channel.completion_doorbell(), &event) != 0) {
    log_error("Session {}: its completion doorbell cannot be watched (errno {}); its client wakes by time-out only", session, errno);
  }
}

void Completion::remove(std::uint64_t session) {
  std::lock_guard lock(mutex_);  // the thread scans under this lock: afterwards it does not touch the channel
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.channel->completion_doorbell(), nullptr);
  count_awake(found->second, Clock::now());
  active_.erase(session);
  sessions_.erase(found);
}

void Completion::look(std::uint64_t session) {
  {
    std::lock_guard lock(mutex_);
    const auto active = active_.find(session);
    if (active == active_.end()) return;
    active->second.look = {};
  }
  eventfd_write(wake_event_.get(), 1);
}

Completion::Scan Completion::scan(std::uint64_t session, ClientChannel& channel) {
  Scan scan;
  for (proto::FenceWaiter& waiter : channel.waiters()) {
    if (waiter.state.load(std::memory_order_acquire) != proto::FenceWaiter::armed) continue;
    // Read once: the client may write another number between the check and the use.
    const std::uint32_t fence = std::atomic_ref(waiter.fence).load(std::memory_order_relaxed);
    const std::uint32_t target = std::atomic_ref(waiter.target).load(std::memory_order_relaxed);
    const bool reached = fence >= proto::kFenceWords || proto::fence_reached(channel.fence(fence).value.load(std::memory_order_acquire), target);
    if (!reached) {
      scan.armed = true;
      scan.fence = fence;
      continue;
    }
    const proto::trace::Span span("fence", "waking a client", {"session", session});
    // The client may have taken the waiter back meanwhile; then there is nobody to wake.
    std::uint32_t expected = proto::FenceWaiter::armed;
    if (!waiter.state.compare_exchange_strong(expected, proto::FenceWaiter::fired, std::memory_order_acq_rel)) continue;
    scan.fired = true;
    proto::futex_wake_all(waiter.state);  // FenceSleep in the client
  }
  return scan;
}

void Completion::note_armed(std::uint64_t session, Clock::time_point now) {
  const auto watched = sessions_.find(session);
  if (watched == sessions_.end()) return;
  const auto [active, is_first] = active_.try_emplace(session);
  if (!is_first) count_wait(active->second, now);
  active->second = {&watched->second, now, now, Interrupts::kLongWait, now};
  std::atomic<std::uint64_t>& waits = watched->second.counts->waits;  // written by nobody else
  waits.store(waits.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void Completion::count_wait(Active& active, Clock::time_point now) {
  std::atomic<std::uint64_t>& wait_ns = active.watched->counts->wait_ns;  // written by nobody else
  const auto passed = std::chrono::nanoseconds(std::max(now - active.counted, Clock::duration::zero())).count();
  wait_ns.store(wait_ns.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(passed), std::memory_order_relaxed);
  active.counted = std::max(active.counted, now);
}

void Completion::count_awake(Watched& watched, Clock::time_point now) {
  const proto::ChannelHeader& header = watched.channel->header();
  const std::uint64_t waits = header.awake_waits.load(std::memory_order_relaxed), wait_ns = header.awake_wait_ns.load(std::memory_order_relaxed);
  const auto passed_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(now - watched.awake_counted).count());
  const auto add = [](std::atomic<std::uint64_t>& count, std::uint64_t more) {  // written by nobody else
    if (more != 0) count.store(count.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  };
  constexpr std::uint64_t kLeastWaitNs = 1'000;
  add(watched.counts->waits, std::min(waits - watched.awake_waits, passed_ns / kLeastWaitNs));
  add(watched.counts->wait_ns, std::min(wait_ns - watched.awake_wait_ns, passed_ns));
  watched.awake_waits = waits;
  watched.awake_wait_ns = wait_ns;
  watched.awake_counted = now;
}

void Completion::loop() {
  if (spare_cores_) prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  serve_before_others();
  while (!stopping_.load(std::memory_order_relaxed)) {
    const Clock::time_point now = Clock::now();
    wait(std::max(look_around(now) - now, Clock::duration(kShortestPause)));
  }
}

Completion::Clock::time_point Completion::look_around(Clock::time_point now) {
  const bool spare_cores = spare_cores_ && !pressure_.is_high(now);
  Clock::time_point next = now + kSleepLimit;
  std::lock_guard lock(mutex_);
  if (now - awake_counted_ >= kAwakeCountPause) {
    awake_counted_ = now;
    for (auto& [session, watched] : sessions_) count_awake(watched, now);
  }
  for (auto entry = active_.begin(); entry != active_.end();) {
    Active& active = entry->second;
    if (active.look <= now) {
      const Scan seen = scan(entry->first, *active.watched->channel);
      count_wait(active, now);
      if (!seen.armed) {  // the next arming rings the doorbell again
        entry = active_.erase(entry);
        continue;
      }
      if (now - active.armed >= active.tell) {
        active.tell = 2 * (now - active.armed);
        active.watched->channel->note_long_wait(seen.fence);
        active.watched->wake_worker();
      }
      active.look = now + completion_pause(now - active.armed, spare_cores);
    }
    next = std::min(next, active.look);
    ++entry;
  }
  return next;
}

void Completion::wait(Clock::duration pause) {
  pollfd ready{epoll_.get(), POLLIN, 0};
  const std::int64_t pause_ns = std::chrono::nanoseconds(pause).count();
  const timespec timeout{pause_ns / 1'000'000'000, pause_ns % 1'000'000'000};
  if (ppoll(&ready, 1, &timeout, nullptr) <= 0) return;
  std::array<epoll_event, 64> edges;
  const int count = epoll_wait(epoll_.get(), edges.data(), static_cast<int>(edges.size()), 0);
  const Clock::time_point now = Clock::now();
  std::lock_guard lock(mutex_);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t id = edges[static_cast<std::size_t>(i)].data.u64;  // a copy: the structure is packed, no reference may bind to it
    note_armed(id, now);
  }
}

}  // namespace mpsshim::broker
