// SPDX-License-Identifier: Apache-2.0
// Ends of sessions: their client has gone, a command has terminated them, they cannot be had, or did not survive their executor. What a session had
// goes back to where it came from: ranges, images, jobs, names, events, its place in an executor.
// Owned by SessionManager; the control process's thread. Whoever calls erase(), refuse() or end() does not use the session afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <set>

#include <cuda.h>

#include "broker/control/base/share_table.hpp"
#include "broker/control/faults/fault_ledger.hpp"
#include "broker/control/loading/image_service.hpp"
#include "broker/control/loading/load_replays.hpp"
#include "broker/control/placement/executor_choice.hpp"
#include "broker/control/placement/relocations.hpp"
#include "broker/control/placement/replacements.hpp"
#include "broker/control/sessions/session_ranges.hpp"
#include "broker/control/sessions/session_table.hpp"

namespace mpsshim::broker::control {

class SessionEnds {
 public:
  // Where things of sessions are.
  struct Places {
    SessionTable& sessions;
    SessionRanges& ranges;
    ImageStore& images;
    ImageService& image_service;
    LoadReplays& replays;
    ShareTable& shares;
    ExecutorChoice& choice;
    Relocations& relocations;
    Replacements& replacements;
    FaultLedger& ledger;
  };
  struct Events {
    std::function<void(std::uint64_t session)> lost;    // it has nothing any more
    std::function<void(std::uint64_t session)> erased;  // there is none of that number any more
  };
  SessionEnds(EventLoop& loop, const SessionLimits& limits, const Places& places, Events events)
      : loop_(loop), limits_(limits), places_(places), events_(std::move(events)) {}

  void end(ClientSession& session);                          // the client is gone
  void end_all_but(const std::set<std::uint64_t>& claimed);  // after a hand-over: those that no connection has come with
  // `stopped` is called once, when nothing of the session runs any more.
  void terminate(ClientSession& session, std::function<void()> stopped);
  // It is in an executor, where its work ends; the client is still there.
  void fail(ClientSession& session, CUresult error, const char* why);
  // Nothing of it is in its executor any more; the client is still there.
  void lose(ClientSession& session, CUresult error);
  // It cannot be had at all: a new one vanishes, one that lived before is lost.
  void refuse(ClientSession& session, CUresult status);
  void closed(ClientSession& session);  // its executor has released it, or never had it
  void erase(ClientSession& session);

 private:
  void begin(ClientSession& session, SessionPhase phase);
  void check(std::uint64_t session);
  static void report_stopped(ClientSession& session);

  EventLoop& loop_;
  const SessionLimits& limits_;
  const Places places_;
  const Events events_;
};

}  // namespace mpsshim::broker::control
