// SPDX-License-Identifier: Apache-2.0
// What issuing needs to know of the session it issues for: the executor's parts, the client's channel, and where results go.
#pragma once

#include <cstdint>

#include "broker/executor/client_channel.hpp"
#include "broker/executor/fault.hpp"
#include "broker/executor/parts.hpp"
#include "broker/executor/session_variables.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

struct IssueContext {
  ExecutorParts& parts;
  ClientChannel& channel;
  std::uint64_t session = 0;
  SessionVariables& variables;  // told of all that may change them

  // The result of a driver call made for a post: a fatal one ends the executor, another becomes the client's asynchronous error.
  CUresult check(CUresult result, const char* call) const {
    if (result == CUDA_SUCCESS) [[likely]] return result;
    parts.faults.check(result, session, call);
    channel.set_async_error(result);
    log_debug("Session {}: {} failed: {}", session, call, parts.driver.describe(result));
    return result;
  }
};

}  // namespace mpsshim::broker
