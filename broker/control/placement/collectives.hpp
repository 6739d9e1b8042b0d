// SPDX-License-Identifier: Apache-2.0
// Sessions on several devices that reach each other's memory: their kernels may wait for each other, as a collective's do. Where two such groups
// share executors, a call of each that needs a quiet window may wait for a kernel of the other, which waits for one that its program cannot launch
// behind its own call: for ever (docs/devices.md, "Nobody waits for ever by us"). So each group comes to executors where no other group is, one
// session after the other, as soon as its work comes to rest, and as far as there are executors; the device's time is then shared between them, as
// natively. Owned by SessionManager; the control process's thread. ClientSession::collective is changed here alone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "broker/control/placement/relocations.hpp"
#include "broker/control/sessions/session_table.hpp"

namespace mpsshim::broker::control {

class Collectives {
 public:
  Collectives(EventLoop& loop, SessionTable& sessions, Relocations& relocations) : loop_(loop), sessions_(sessions), relocations_(relocations) {}

  // `session` reaches memory of `owner`, be it of its own device: nothing follows then, unless that is in a group.
  void linked(ClientSession& session, std::uint64_t owner);

 private:
  void look();
  [[nodiscard]] bool try_next();
  void tell(const ClientSession& session) const;                                        // that it stays
  [[nodiscard]] const ClientSession* neighbour_of(const ClientSession& session) const;  // of an older group, in its executor; nullptr: there is none

  EventLoop& loop_;
  SessionTable& sessions_;
  Relocations& relocations_;
  std::chrono::milliseconds pause_{0};  // before the next try, or the next look at one
  std::size_t left_ = 0;                // at the last try: sessions that have such a neighbour
  std::uint64_t last_ = 0;              // that was tried
  EventLoop::Timer timer_;
};

}  // namespace mpsshim::broker::control
