// SPDX-License-Identifier: Apache-2.0
// The client's part of a timeline (proto/trace.hpp): MPSSHIM_TRACE=file makes each process write `file.<pid>`, with every API call (duration
// and error) and every wait for the broker with its reason. Calls are seen in entry.hpp's slow path, which a traced process takes for all of
// them; without MPSSHIM_TRACE nothing here is called after start_trace().
#pragma once

#include <cstdint>

#include "gen/api_ids.hpp"
#include "gen/cuda_api.hpp"

namespace mpsshim::interposer {

// Begins the timeline if MPSSHIM_TRACE asks for one. Called when the process settles, before anybody looks whether it is traced. Any thread.
void start_trace();

// This process is that session of the broker's, too.
void trace_session(std::uint64_t session);

void trace_api_call(ApiId id, CUresult result, std::uint64_t began_ns);

}  // namespace mpsshim::interposer
