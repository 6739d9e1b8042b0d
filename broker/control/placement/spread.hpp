// SPDX-License-Identifier: Apache-2.0
// In which order a newcomer sees the devices that names none (mpsbroker --spread; docs/devices.md, Placement): the one with most room first, by what
// clients hold of its memory and take of its time. Who has been told and has no session yet counts where it is expected; a process whose parent, or
// whose parent's parent, has been told sees what that one sees.
// Owned by SessionManager; the control process's thread. What is read of clients decides where newcomers go and nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "broker/control/executors/executor_pool.hpp"
#include "broker/control/sessions/session_table.hpp"

namespace mpsshim::broker::control {

// What is to be known of a client on one device.
struct Occupant {
  unsigned device = 0;
  std::uint64_t memory_bytes = 0;
  double time_share = 0;    // of the device's time, 0 to 1
  bool is_settled = false;  // else it may want more than it has taken so far
};

// Ordinals, the device with most room first; of equals the lower one. `memory_bytes`: each device's; 0: it cannot be used, and comes last.
[[nodiscard]] std::vector<unsigned> devices_by_room(std::span<const std::uint64_t> memory_bytes, std::span<const Occupant> occupants);

class Spread {
  struct Told {
    pid_t pid = -1;
    uid_t uid = static_cast<uid_t>(-1);
    std::vector<unsigned> order;
    EventLoop::Clock::time_point at;
    bool is_expected = true;  // it has no session yet
  };

 public:
  // What one connection was told; it goes with that.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept : spread_(std::exchange(other.spread_, nullptr)), number_(other.number_) {}
    Place& operator=(Place&& other) noexcept;
    ~Place() { reset(); }
    [[nodiscard]] std::vector<unsigned> order() const;  // empty: nothing
    void has_session();

   private:
    friend class Spread;
    Place(Spread* spread, std::uint64_t number) : spread_(spread), number_(number) {}
    void reset();
    Spread* spread_ = nullptr;
    std::uint64_t number_ = 0;
  };

  Spread(const SessionTable& sessions, const ExecutorPool& pool) : sessions_(sessions), pool_(pool) {}
  Spread(const Spread&) = delete;

  // Of a broker that spreads. `facts`: of its devices.
  [[nodiscard]] Place tell(const ClientIdentity& client, const proto::DriverFacts& facts);
  // What another control process has told it.
  [[nodiscard]] Place adopt(const ClientIdentity& client, std::vector<unsigned> order, bool is_expected);

 private:
  struct Sample {
    EventLoop::Clock::time_point at;
    std::uint64_t gpu_ns = 0;
    double share = 0;
  };
  [[nodiscard]] const Told* told_to(pid_t pid, uid_t uid) const;
  [[nodiscard]] const Told* told_to_family(const ClientIdentity& client) const;
  [[nodiscard]] std::vector<Occupant> occupants();
  [[nodiscard]] double time_share(const ClientSession& session, EventLoop::Clock::time_point now);

  const SessionTable& sessions_;
  const ExecutorPool& pool_;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, Told> told_;
  std::map<std::uint64_t, Sample> samples_;  // by session
};

}  // namespace mpsshim::broker::control
