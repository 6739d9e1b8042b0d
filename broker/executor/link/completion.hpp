// SPDX-License-Identifier: Apache-2.0
// One thread that watches the fences on which clients sleep (FenceWaiter in proto/channel.hpp) and wakes them. A client that stops spinning
// arms a waiter and rings its session's completion doorbell; without armed waiters the thread sleeps in epoll, so idle sessions cost nothing.
//
// Fences are words in memory that the GPU writes without telling anybody, so the thread looks again and again: first after microseconds, then
// ever more rarely, in proportion to how long the youngest waiter of a session has waited already (completion_pause). A wait is so prolonged by
// a small part, and a long one costs next to nothing (docs/experiments/2026-11-22-long-waits.md). After Interrupts::kLongWait the session's worker is
// told, which has an interrupt say when the work has ended.
//
// Threads: add, remove and look from any; none waits for the GPU. Trust: a waiter's fence index is checked; a client that scribbles into its
// waiters or fences wakes or does not wake its own threads. Doorbells are listened to and never read or written: their file descriptions are
// the client's too, which may make a write to them wait.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "broker/executor/base/core_pressure.hpp"
#include "proto/mutex.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

class ClientChannel;
struct SessionCounts;

// Whether threads may look often without taking a core from those they wait for.
[[nodiscard]] bool has_spare_cores();
inline constexpr unsigned long kTimerSlackNs = 1'000;  // of threads that look: the kernel's 50 us would be ten times the shortest pause

// Until the next look at waiters of which the youngest has waited so long: 0.5 % of that, at least 5 us, at most 5 ms. Where there are no cores
// to spare 1.6 % and at least 50 us, so that the thread does not take a core from the kernels' launching.
[[nodiscard]] std::chrono::nanoseconds completion_pause(std::chrono::nanoseconds waited, bool spare_cores);

class Completion {
 public:
  explicit Completion(const CorePressure& pressure);
  Completion(const Completion&) = delete;
  ~Completion();

  // `channel` stays mapped until remove(session) has returned, and `counts` is the session's. `wake_worker` has the session's worker look at it;
  // called by the thread, with its lock held: it must not wait.
  void add(std::uint64_t session, ClientChannel& channel, SessionCounts& counts, std::function<void()> wake_worker);
  void remove(std::uint64_t session);
  // Looks at the session's waiters at once, if there are any.
  void look(std::uint64_t session);

  struct Scan {
    bool armed = false;       // some waiter's fence has not come yet
    std::uint32_t fence = 0;  // the last such one's
    bool fired = false;
  };
  // Looks once at all waiters of a channel; public for tests.
  static Scan scan(std::uint64_t session, ClientChannel& channel);

 private:
  using Clock = std::chrono::steady_clock;
  struct Watched {
    ClientChannel* channel = nullptr;
    SessionCounts* counts = nullptr;
    std::function<void()> wake_worker;
    std::uint64_t awake_waits = 0;  // as ChannelHeader has them, counted already
    std::uint64_t awake_wait_ns = 0;
    Clock::time_point awake_counted;
  };
  // A session that has armed waiters, as far as known.
  struct Active {
    const Watched* watched = nullptr;  // in sessions_
    Clock::time_point armed;  // when the last doorbell was heard
    Clock::time_point look;   // at its waiters, next
    Clock::duration tell;     // the worker, after such a wait
    Clock::time_point counted;  // until then the wait is in its counts
  };

  // A doorbell was heard: a thread of the client lies down.
  void note_armed(std::uint64_t session, Clock::time_point now) REQUIRES(mutex_);
  static void count_wait(Active& active, Clock::time_point now);
  // What the client says of waits in which its threads stayed awake, as far as there was time for them.
  static void count_awake(Watched& watched, Clock::time_point now);
  void loop();
  // Looks where it is time to; when to look next.
  [[nodiscard]] Clock::time_point look_around(Clock::time_point now);
  void wait(Clock::duration pause);

  proto::FileDescriptor epoll_;
  proto::FileDescriptor wake_event_;
  Mutex mutex_;
  std::map<std::uint64_t, Watched> sessions_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, Active> active_ GUARDED_BY(mutex_);
  Clock::time_point awake_counted_ GUARDED_BY(mutex_);
  const CorePressure& pressure_;
  const bool spare_cores_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace mpsshim::broker
