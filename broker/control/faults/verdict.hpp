// SPDX-License-Identifier: Apache-2.0
// What becomes of each session when its executor has died: the decision table, free of sockets and processes.
//
//   who                                   executor reported a fault              it crashed, or was replaced
//   client gone                           dropped                                dropped
//   terminated                            failed, with the error that it was given then (both)
//   shown guilty (guilt.hpp)              failed with the driver's error         (nobody is)
//   idle                                  moved                                  moved
//   named by a call in which the          –                                      failed, CUDA_ERROR_MPS_SERVER_NOT_READY (a crash while its
//   executor crashed or hung                                                     image is compiled names nobody the first time)
//   to be tried (trials.hpp)              tried, and failed then                 (nobody is)
//   busy                                  failed, CUDA_ERROR_MPS_SERVER_NOT_READY (both)
//
// A client that is gone is a suspect too: its work may be what faulted. Busy is what the progress table says, which no client can write.
// Unused for anything the client still holds in its ring: it posts that again.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <cuda.h>
#include <sys/types.h>

#include "broker/control/faults/guilt.hpp"
#include "broker/progress_table.hpp"

namespace mpsshim::broker::control {

struct DeathReport {
  enum class Cause { fault, crash, replaced };
  Cause cause = Cause::crash;
  CUresult error = CUDA_SUCCESS;    // fault: what the driver said
  std::uint64_t named_session = 0;  // whom the executor has shown guilty, or in whose driver call it crashed or hung; 0: nobody
  std::string text = {};            // for the log
  WorkUnderWay work = {};
  pid_t pid = -1;               // of the executor
  std::string assertions = {};  // the driver's lines about those that failed
  bool was_compiling = false;   // an image of the named session, when it crashed
};

struct SessionCondition {
  std::uint64_t session = 0;
  bool busy = false;
  bool client_gone = false;
  bool terminated = false;
  std::vector<proto::Lease> ranges = {};  // of its device and pinned memory
  bool is_tried = false;                  // what it had launched is to be run again (Trials)
};

enum class Fate { moved, failed, tried, dropped };

struct Verdict {
  std::uint64_t session = 0;
  Fate fate = Fate::moved;
  CUresult error = CUDA_SUCCESS;  // failed: sticky error of that client
};

[[nodiscard]] std::vector<Verdict> judge(const DeathReport& report, std::span<const SessionCondition> sessions, const Guilt& guilt);

// Sessions that have issued what is not passed yet. Exact once the executor is dead; a moment's view while it lives.
[[nodiscard]] std::set<std::uint64_t> busy_sessions(const ProgressTable& table);
// How many operations each session has issued that have not ended, by session; a moment's view. For those who look.
[[nodiscard]] std::map<std::uint64_t, std::uint64_t> work_in_flight(const ProgressTable& table);
// Which ends are late ones, at a fault that was reported at `report`, and that the kernel log told of at `heard`. An illegal address stops the
// GPU before any word is written, and the log tells of it late.
[[nodiscard]] LateEnds late_ends(const ProgressTable& table, ProgressTick report, CUresult error, std::optional<ProgressTick> heard = std::nullopt);
// The same for the question who may have done it. Where words are written behind faulted work, log and report may come so late, on a GPU that other
// processes share, that nobody is to be convicted because others had just ended; it makes nobody busy.
[[nodiscard]] LateEnds suspect_ends(const ProgressTable& table, ProgressTick report, CUresult error,
                                    std::optional<ProgressTick> heard = std::nullopt);
// The same after a fault: what ended late counts too, be it in a stream that its session has left since.
[[nodiscard]] std::set<std::uint64_t> busy_sessions(const ProgressTable& table, const LateEnds& late);
[[nodiscard]] bool is_busy(const ProgressTable& table, std::uint64_t session);
// False once the executor has ended all work of the session and will begin none: its streams are given back.
[[nodiscard]] bool has_streams(const ProgressTable& table, std::uint64_t session);

// A stream that was at work, and how far it was: as long as it is at work and no further, its kernel goes on.
struct RunningStream {
  std::uint32_t index = 0;
  std::uint32_t completed = 0;
  std::uint64_t session = 0;
  friend bool operator==(const RunningStream&, const RunningStream&) = default;
};
[[nodiscard]] std::vector<RunningStream> running_streams(const ProgressTable& table, std::uint64_t except_session);
[[nodiscard]] bool runs_on(const ProgressTable& table, const RunningStream& stream);

}  // namespace mpsshim::broker::control
