// SPDX-License-Identifier: Apache-2.0
// The context code's one way to the session. A file of its own, so that the contexts are tested without a channel.
#include "interposer/channel/session_client.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

CUresult ensure_session() {
  const CUresult error = SessionClient::instance().ensure_attached();
  return error == CUDA_SUCCESS && has_several_sessions() ? PinnedMemory::join() : error;
}

}  // namespace mpsshim::interposer::forward
