// SPDX-License-Identifier: Apache-2.0
// The context code's one way to the session. A file of its own, so that the contexts are tested without a channel.
#include "interposer/channel/session_client.hpp"
#include "interposer/forward/hooks.hpp"

namespace mpsshim::interposer::forward {

CUresult ensure_session() { return SessionClient::instance().ensure_attached(); }

}  // namespace mpsshim::interposer::forward
