// SPDX-License-Identifier: Apache-2.0
// The local half without exported functions: no call comes in, so none has to be given to a session (interposer/forward/call_session.cpp).
#include <cstdlib>

#include "interposer/local/call_session.hpp"

std::uint32_t mpsshim::interposer::session_of_call(std::span<const SessionHint>) { std::abort(); }
