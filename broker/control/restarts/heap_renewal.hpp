// SPDX-License-Identifier: Apache-2.0
// The device's heap belongs to a context: what kernels of clients that have ended have left there nobody can give back, and the next client's
// malloc() may find its contents. So executors are renewed once whoever launched such kernels has ended: at once where no session is in any of them,
// and else when all sessions have been silent for a second and lose nothing. A session at work is never disturbed.
// All that is within a house (SessionLimits::house_of): what a user's clients leave has that user's executors renewed and nobody else's, whatever
// others are at, and the tenth of the time is that user's own. Houses have turns, a step each. The executors of a heap that nobody has taken memory
// of are not renewed. Owned by SessionManager; the control process's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "broker/control/executors/executor_pool.hpp"
#include "broker/control/restarts/restarts.hpp"
#include "broker/control/sessions/session_table.hpp"

namespace mpsshim::broker::control {

class HeapRenewal {
 public:
  HeapRenewal(EventLoop& loop, const SessionTable& sessions, ExecutorPool& pool, Restarts& restarts, Restarts::Serve serve)
      : loop_(loop), sessions_(sessions), pool_(pool), restarts_(restarts), serve_(std::move(serve)) {}

  void session_left(const ClientSession& session);  // it is over in the executor
  void look_soon();                                 // a session has ended: perhaps it was the last one, or what stood in the way
  void life_ended(const ManagedExecutor& executor) { heaps_[executor.user()].left.erase(executor.id()); }
  // A newcomer that finds nobody but clients of the heap that are ending gets an executor with a blank one: it waits for their end, as it would
  // natively for a context. Restarts::Serve follows.
  [[nodiscard]] bool holds_back(const ClientSession& newcomer);
  // Before a command restarts executors; `then` at once, or when they have been renewed here, which may be under way.
  void leave_to_command(std::function<void()> then);

 private:
  enum class Step : std::uint8_t { none, preparing, renewing };
  struct Heap {
    std::set<ExecutorId> left;                 // with memory on the device's heap that nobody has any more, perhaps
    EventLoop::Clock::time_point next_alone;   // not before: without sessions
    EventLoop::Clock::time_point next_beside;  // beside sessions
    std::chrono::milliseconds pause{0};        // after a try beside sessions
    std::uint64_t obstacle = 0;                // the session that would have lost something
    std::uint64_t activity = 0;
    EventLoop::Clock::time_point silent_since;
    EventLoop::Timer timer;
  };
  void look_at_all();
  void look_at(uid_t house, Heap& heap);
  [[nodiscard]] bool is_alone(uid_t house) const;  // no session is in an executor of it
  [[nodiscard]] bool may_renew(uid_t house) const;
  [[nodiscard]] std::uint64_t activity(uid_t house) const;
  [[nodiscard]] bool is_silent(uid_t house, Heap& heap);
  void await_next_lives(uid_t house, EventLoop::Clock::time_point until);
  void renew(uid_t house);
  void renewed(uid_t house, EventLoop::Clock::time_point began, std::size_t sessions);
  void give_up(uid_t house, const std::string& why);
  void end_step();
  void end_newcomers_wait();

  EventLoop& loop_;
  const SessionTable& sessions_;
  ExecutorPool& pool_;
  Restarts& restarts_;
  const Restarts::Serve serve_;
  std::map<uid_t, Heap> heaps_;  // of the executors of each house
  Step step_ = Step::none;       // of one house at a time
  uid_t last_ = kHome;           // whose it is, or was
  bool look_is_due_ = false;
  EventLoop::Clock::time_point waits_until_;  // for a command that restarts executors
  EventLoop::Timer newcomer_timer_;
  std::vector<std::function<void()>> commands_;  // that wait for the end of a step
};

}  // namespace mpsshim::broker::control
