// SPDX-License-Identifier: Apache-2.0
// Multiprocessors that are kept for groups (`namespace set --active-thread-percentage-request`), and lent while these have no use for them. A group
// that asks has chunks of each device that no other such group has. While one of its clients is at work in an executor, all other sessions of that
// executor run on what is left; once none has been for a while, they have the whole device again. What others have begun there stays until it has
// ended. Clients outside of a group count what is left, lent or not: a cooperative grid that fills what they count fits either way.
//
// A session that is to keep off is told chunks as one with a static partition is (SessionTerms::chunks), so executors know nothing of requests.
//
// Work is seen by what is counted of sessions (session_counts.hpp). Who comes back soon after its part was lent keeps it longer the next time, since
// each change has the others' graphs made anew. Owned by SessionManager; the control process's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/base/executor_id.hpp"
#include "broker/control/sessions/client_session.hpp"
#include "broker/control/sessions/namespaces.hpp"
#include "broker/control/sessions/session_limits.hpp"
#include "broker/control/sessions/session_table.hpp"
#include "broker/control/sessions/sm_partitions.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::broker::control {

// When a group's part is lent, and when it is taken back. Time is the caller's.
class GroupActivity {
 public:
  using Clock = EventLoop::Clock;
  static constexpr std::chrono::seconds kShortestKeep{1}, kLongestKeep{64};  // behind the last work that was seen
  static constexpr std::chrono::seconds kSoon{10};

  // `counted` grows while there is work. True: is_at_work() is another.
  [[nodiscard]] bool look(std::uint64_t counted, Clock::time_point now);
  [[nodiscard]] bool is_at_work() const { return is_at_work_; }
  [[nodiscard]] std::chrono::seconds keep() const { return keep_; }

 private:
  bool is_at_work_ = false;
  std::uint64_t counted_ = 0;
  std::chrono::seconds keep_ = kShortestKeep;
  Clock::time_point last_work_, lent_at_;
};

// `count` of the chunks, neighbours but for the last and the first; all, if there are no more. Of others with another `seed` that are alike it has as
// few as can be, and always the same ones.
[[nodiscard]] std::uint64_t spread_chunks(std::uint64_t chunks, unsigned count, std::uint64_t seed);

class MultiprocessorRequests {
 public:
  struct Parts {
    const SessionLimits& limits;
    const SessionTable& sessions;
    const Namespaces& namespaces;
    const SmPartitions& partitions;
    std::function<const proto::DriverFacts*()> facts;
    std::function<void(std::uint64_t session)> refresh;  // it may be to run on other chunks, or to count others
  };
  MultiprocessorRequests(EventLoop& loop, Parts parts) : loop_(loop), parts_(std::move(parts)) {}

  // "", or why so much cannot be kept for that group, on top of what is kept for the others of its user's.
  [[nodiscard]] std::string fault_of(const Namespaces::Key& key, std::uint32_t percentage) const;
  // Requests are others than before, or one's group is gone.
  void changed();

  // What a session of these percentages (0: all) is to run on where it must keep off what is kept for others at work; else 0.
  [[nodiscard]] std::uint64_t chunks_for(const ClientSession& session, std::uint32_t thread_percentage, std::uint32_t group_percentage) const;
  // Devices on which what is kept for the group is its own at the moment; on others it is lent.
  [[nodiscard]] std::vector<std::uint64_t> not_lent_on(std::uint64_t group) const;
  // What clients of a user outside of these groups count, in hundredths of a percent; 0: all. `own`: the one that they are in, or nullptr.
  [[nodiscard]] std::uint32_t percentage_left(uid_t house, const Namespace* own, unsigned device) const;

 private:
  using Kept = std::map<std::uint64_t, std::uint64_t>;  // chunks, by group
  struct Wish {
    uid_t house = 0;
    std::uint32_t percentage = 0;
  };
  struct Sum {
    std::uint64_t counted = 0;
    std::string name;
  };
  [[nodiscard]] const Namespace* namespace_of(const ClientSession& session) const;
  [[nodiscard]] Kept kept(uid_t house, unsigned device) const;
  [[nodiscard]] std::uint32_t all_of(unsigned device) const;  // multiprocessors
  [[nodiscard]] int major_of(unsigned device) const;
  void look();
  void refresh(const std::function<bool(const ManagedExecutor&)>& is_meant) const;

  EventLoop& loop_;
  const Parts parts_;
  std::map<std::uint64_t, Wish> wishes_;                                      // by group
  std::map<std::pair<ExecutorId, std::uint64_t>, GroupActivity> activities_;  // of groups that are in the executor
  EventLoop::Timer next_look_;
};

}  // namespace mpsshim::broker::control
