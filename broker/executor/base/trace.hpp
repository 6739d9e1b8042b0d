// SPDX-License-Identifier: Apache-2.0
// The executor's part of a timeline (proto/trace.hpp). With MPSSHIM_TRACE=file in mpsbroker's environment each executor writes
// `file.executor.<pid>`: records read from a session's ring, driver calls that give work to the GPU (chains with their length, copies with their
// bytes), quiet windows and what ran in them. Where something is to be seen, a scope holds a proto::trace::Span; ScopedCall has one already.
#pragma once

namespace mpsshim::broker {

// Called once, before the executor starts its threads.
void start_trace();

}  // namespace mpsshim::broker
