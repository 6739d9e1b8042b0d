// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual, "Peer Context Memory Access": what one context has allocated, reached from another's device.
#include "gen/api_declarations.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/peer_access.hpp"
#include "interposer/local/call_session.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

// From the current context, whatever session the other context has made the call's.
struct Asked {
  PeerAccess::Reason reason;
  bool is_possible = false;
};
CUresult read(CUcontext peer, Asked& asked) {
  proto::Known<ContextObject> current;
  if (const CUresult error = require_context(current); error != CUDA_SUCCESS) return error;
  const auto other = find_context(peer);
  if (!other) return CUDA_ERROR_INVALID_CONTEXT;
  asked.reason = {session_of(current->device), session_of(other->device), to_id(owning_context()).value, to_id(owning_context(peer)).value};
  asked.is_possible = can_access(current->device, other->device);
  return CUDA_SUCCESS;
}

CUresult begin_in(std::uint32_t index) {
  const ActingSession acting(index);
  return session().begin_call();
}

}  // namespace

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
  if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Asked asked;
  if (const CUresult error = read(peerContext, asked); error != CUDA_SUCCESS) return error;
  if (!asked.is_possible) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  for (const std::uint32_t index : {asked.reason.by, asked.reason.owner}) {
    if (const CUresult error = begin_in(index); error != CUDA_SUCCESS) return error;
  }
  return PeerAccess::instance().enable(asked.reason);
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext) {
  Asked asked;
  const CUresult error = read(peerContext, asked);
  return error == CUDA_SUCCESS ? PeerAccess::instance().disable(asked.reason) : error;
}

}  // namespace mpsshim::interposer::api
