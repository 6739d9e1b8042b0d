// SPDX-License-Identifier: Apache-2.0
// What issuing needs to know of the session it issues for: the executor's parts, the client's channel, and where results go.
#pragma once

#include <cstdint>

#include "broker/executor/context/parts.hpp"
#include "broker/executor/link/client_channel.hpp"
#include "broker/executor/link/fault.hpp"
#include "broker/executor/modules/session_variables.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

struct IssueContext {
  ExecutorParts& parts;
  ClientChannel& channel;
  std::uint64_t session = 0;
  SessionVariables& variables;  // told of all that may change them
  std::uint32_t counts = 0;     // its row of ExecutorCore::counts
  unsigned priority_rank = 0;   // its client's priority (PriorityRanks)

  [[nodiscard]] int priority(int asked) const { return parts.ranks.priority(priority_rank, asked); }

  // The result of a driver call made for a post: a fatal one ends the executor. After another one the client's memory is not what its program
  // takes it for, since the call returned CUDA_SUCCESS there long ago: it is told so for good, because an error that some query brings once is
  // easily passed over.
  CUresult check(CUresult result, const char* call) const {
    if (result == CUDA_SUCCESS) [[likely]]
      return result;
    parts.faults.check(result, session, call);
    if (channel.set_lost_work(result)) {
      log_error(
          "Session {}: the driver refused work that had been accepted ({}: {}); its results are not to be trusted, so all further calls of its "
          "program fail with that error. Run it without mpsshim to see the call that is refused",
          session, call, parts.driver.describe(result));
    }
    return result;
  }
};

}  // namespace mpsshim::broker
