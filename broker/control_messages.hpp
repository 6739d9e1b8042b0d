// SPDX-License-Identifier: Apache-2.0
// What goes with the messages between the control process and an executor, over the SOCK_SEQPACKET pair the executor inherits as its file
// descriptor 3. Each message stands in proto/spec/messages.toml (docs/messages.md), its form in executor_message.hpp.
// Both are ours and of one binary, so the layout is private to it; the control process still survives whatever a crashing executor sends.
//
//   a life    StandingBy (of a cold one) and MakeContext, Ready; at its end Quit, or Quiesce and Quiesced, or Fault
//   recovery  LoadReplay of the load log's entries, CopyReserve of those a standby had; then for each session LeaseRestore, VariablesRestore,
//             EventTimesRestore, ChunkRestore, SegmentRestore, SessionOpen. What a client can name is announced (SegmentAdd, LeaseAdd, PieceAdd)
//             before the client learns of it
//   an end    Quiesce, Quiesced; then for each session that has nothing in flight SessionPause, EventTimes, SessionPaused
//   a move    Starved, SessionPause, EventTimes, SessionPaused, VariablesCheck and VariablesChecked, SessionClose; or Stay
#pragma once

#include <cstdint>

#include "broker/executor_message.hpp"
#include "gen/executor_messages.hpp"
#include "proto/client_requests.hpp"

namespace mpsshim::broker {

inline constexpr int kExecutorControlFd = 3;   // the socket
inline constexpr int kExecutorFactsFd = 4;     // DriverFacts, writable by the executor
inline constexpr int kExecutorProgressFd = 5;  // ProgressTable (broker/progress_table.hpp), shared with the control process only
inline constexpr int kExecutorCallsFd = 6;     // CallTable (broker/call_table.hpp), likewise
inline constexpr int kExecutorCountsFd = 7;    // SessionCountsFile (broker/session_counts.hpp), which all executors share; may not be there
// Its standard output is a memory file: see Printed. Its standard error is a pipe that the control process passes on: failed assertions.

using proto::LogKind;

// Flags of a load in ModuleNote: what of the image may have an address that its client has. Without either it may lie anywhere.
inline constexpr std::uint32_t kLoadHasVariables = 1;        // in a copy for one client
inline constexpr std::uint32_t kLoadTakesCodeAddresses = 2;  // image::CubinInfo

// Flags of SessionPause. Stay lets the session go on, even after SessionPaused 0; so the answer has the flags and the order's number: one that
// crosses a Stay says nothing any more. To rest: SessionPaused 0 says besides that no call of it is under way. Without variables: where it is to go
// they could not be had. Despite variables: whatever of it the next executor cannot have. Last: its executor is about to be ended, whatever the
// answer.
inline constexpr std::uint32_t kPauseToRest = 1;
inline constexpr std::uint32_t kPauseDespiteVariables = 2;
inline constexpr std::uint32_t kPauseWithoutVariables = 4;
inline constexpr std::uint32_t kPauseLast = 8;

// Flag of Starved. As things are the session cannot go on elsewhere with what it has (Session::is_movable): the call waits on.
inline constexpr std::uint32_t kStarvesInPlace = 1;

// Flags of ImageWant: ImageTarget's.
inline constexpr std::uint32_t kImageHasObjects = 1;
inline constexpr std::uint32_t kImageForTexts = 2;
inline constexpr std::uint32_t kImageOpensAssertions = 8;
inline constexpr std::uint32_t kImageIsInput = 4;  // ImageCheck: looked through, nothing is made of it

}  // namespace mpsshim::broker
