// SPDX-License-Identifier: Apache-2.0
// Decides once per process whether its CUDA calls go to a broker or to the real driver, and keeps what the decision found.
//
// Nothing happens when the library is loaded. The first API call settles the process: it connects to the control process and receives the
// driver facts; no session is opened. The state lies in a page that the kernel clears in a child of fork(), so the child notices: one whose
// parent had not called cuInit settles anew, one whose parent had gets CUDA_ERROR_NOT_INITIALIZED from every call, as with NVIDIA's driver,
// and never uses the inherited socket or mappings. Any thread may call any of this; nothing here is ever destroyed.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "gen/cuda_api.hpp"
#include "proto/device_facts.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer {

class Connection;

enum class ProcessState : std::uint32_t {
  undecided = 0,  // what the kernel leaves in a child of fork()
  ready,          // a broker answers and cuInit has succeeded: the one state with nothing left to ask
  ready_traced,   // the same under MPSSHIM_DEBUG=calls or MPSSHIM_TRACE
  attached,       // a broker answers, cuInit has not been called
  pass_through,   // every call jumps to the real driver
  no_driver,      // neither a broker nor a real driver
  refused,        // a broker was demanded or found, but will not serve this process
  forked,         // child of a process that had initialised CUDA
};

// Cleared by the kernel in a child of fork(): alone in its page.
struct alignas(4096) ForkCleared {
  // Stored under `mutex` and by cuInit, with release: whoever loads `attached` or more sees the facts and the real driver's table.
  std::atomic<ProcessState> state;
  Mutex mutex;
};
static_assert(sizeof(ForkCleared) == 4096);
extern ForkCleared fork_cleared;

[[nodiscard]] inline ProcessState process_state() { return fork_cleared.state.load(std::memory_order_acquire); }

// Settles the process if nobody has; returns the state.
ProcessState settle();

// cuInit in a process that has a broker. The first success makes the state `ready`; several threads may call it at once.
[[nodiscard]] CUresult initialise_process();
[[nodiscard]] inline bool is_initialised() {
  const ProcessState state = process_state();
  return state == ProcessState::ready || state == ProcessState::ready_traced;
}

// What a refused process answers: the broker's own status, or CUDA_ERROR_MPS_CONNECTION_FAILED.
[[nodiscard]] CUresult refusal();

// cuDriverGetVersion: the broker's driver. Where nobody can tell (no broker, one that refuses, no driver) the newest API that this library has: a
// runtime takes a smaller number than its own for the reason why nothing works, and would never ask cuInit for the real one.
[[nodiscard]] int driver_version();

// Only in the states attached, ready and ready_traced.
[[nodiscard]] const proto::DriverFacts& driver_facts();
// Of the session that the calling thread acts for; any but the first has one from open_connection() on.
[[nodiscard]] Connection& connection();
// CUDA_SUCCESS where it is there. Called by one thread a session.
[[nodiscard]] CUresult open_connection();

}  // namespace mpsshim::interposer
