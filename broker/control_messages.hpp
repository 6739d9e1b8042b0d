// SPDX-License-Identifier: Apache-2.0
// Messages between the control process and an executor, over the SOCK_SEQPACKET pair the executor inherits as its file descriptor 3.
// Both are ours and of one binary, so the layout is private to it; the control process still survives whatever a crashing executor sends.
//
//   control process                                           executor
//                                                          ←  Ready                      after the context exists; facts are in the facts segment
//                                                          ←  StandingBy                 before that, from a cold one: the driver is initialised
//   MakeContext                                            →                             it goes on; Ready follows
//   SessionOpen + [channel, fences, ring doorbell,         →  SessionOpened              status; on failure the session is refused
//                  completion doorbell]
//   ChunkRestore + [memory handle]                         →  (part of SessionOpen's set: sent before it, recovery only)
//   VariablesRestore + [memory file]                       →  (recovery: what VariablesFile brought from an earlier executor)
//   VariablesForget                                        →  that session does not come back: copies of images kept for it are anybody's
//                                                          ←  VariablesFile + [file]     broker/kept_variables.hpp, once a session; it is given back
//                                                                                       to the session's next executor
//                                                          ←  EventTimes + [file]        broker/event_times.hpp, before SessionPaused 0; it is
//                                                                                       given back to the executor that the session goes to
//   EventTimesRestore + [file]                             →  (then)
//   SegmentAdd + [memory file]                             →  (used by SegmentMap; sent before the client learns the id)
//   SegmentRestore + [memory file]                         →  (recovery: registered already before the epoch, at its address)
//   PieceAdd + [memory handle]                             →  (memory that another session shares, used by MemoryAdopt, or of another interface,
//                                                          used by ExternalImport; sent before the client learns that it may)
//                                                          ←  PieceTaken                 it was used by ExternalImport
//                                                          ←  PieceEnded                 what that imported has ended
//                                                          ←  MemoryWant                 may `session`, whose user has a limit, have so many bytes of
//                                                                                       device memory more? ChunkCreated names the number, or MemoryBack
//   MemoryGrant                                            →                             `status`; and what is left to the user
//                                                          ←  MemoryBack                 they were not made, or have ended
//   LeaseAdd                                               →  (a further device range, used by LeaseUse; sent before the client learns of it)
//   LeaseRestore                                           →  (recovery: before the session's ChunkRestore)
//                                                          ←  LeaseReleased              nothing of that range is reserved or mapped any more
//   SessionClose                                           →  SessionClosed              everything of it is idle, unmapped and released
//                                                          ←  ChunkCreated + [handle]    before the client gets its reply
//                                                          ←  ChunkReleased
//                                                          ←  ImageWant                  for a load of `session`
//   ImageGive + [sealed memory file,                       →  the second: what a compiler process has made of the first (prepared_file.hpp).
//                what it was prepared to]                     Without files: `status`, and `text` says why
//                                                          ←  ImageCheck + [file]        an input of a linker of `session`; ImageGive answers
//                                                          ←  LinkWant + [link_file.hpp] for image `object` of `session`, or a linker of it (0); of no
//                                                                                       session: for a replay, by process `client_pid`. ImageGive
//                                                                                       answers: the request, and the outcome; without that the
//                                                                                       executor is to see to it itself
//                                                          ←  ModuleNote                 an entry of the load log, before the driver call is issued
//   LoadReplay + [sealed memory file]                      →  (recovery: the entries in their order, before the first SessionOpen; `session` has
//                                                              kept variables of that copy: nobody else gets it. A standby
//                                                           gets them as they are logged)
//                                                          ←  ImageCompiled + [cubin]    made from an image: given out instead of it from now on
//                                                          ←  Fault                      then the executor stops itself (SIGSTOP); the control
//                                                          process
//                                                                                       replaces it, and ends it
//   Quiesce                                                →  Quiesced                   no ring is read any more: the control process looks at
//                                                                                       the progress table until all that was read is passed,
//                                                                                       then replaces it. What was not read moves
//                                                          ←  Starved                    a call of `session` got no quiet window for 1.5 s, because
//                                                          work of
//                                                                                       session `object` does not end; `text` names the call. Sent
//                                                                                       again from time to time
//   SessionPause                                           →  SessionPaused              answer, if it is to be served by another executor. 0: its
//   records
//                                                                                       are read no more and its own work is done; SessionClose
//                                                                                       follows. Else it cannot move, and goes on
//   Stay                                                   →                             answer: no other executor for that session; its call waits
//   on.
//                                                                                       Ends a pause that was asked for
//                                                          ←  Settle                     answered once all that came before has been dealt with:
//   Settled                                                →                             handles of released chunks are closed, their memory is free
//                                                          ←  Printed                    so many bytes of its standard output, from there on, are
//                                                          what
//                                                                                       kernels of `session` have printed
//                                                          ←  HeapUsed                   `session` has launched a kernel that may take memory of the
//                                                                                       device's heap: what it leaves there outlives it
//   Quit                                                   →
#pragma once

#include <cstdint>

#include "gen/executor_messages.hpp"
#include "proto/client_requests.hpp"

namespace mpsshim::broker {

inline constexpr int kExecutorControlFd = 3;   // the socket
inline constexpr int kExecutorFactsFd = 4;     // DriverFacts, writable by the executor
inline constexpr int kExecutorProgressFd = 5;  // ProgressTable (broker/progress_table.hpp), shared with the control process only
inline constexpr int kExecutorCallsFd = 6;     // CallTable (broker/call_table.hpp), likewise
// Its standard output is a memory file: see Printed. Its standard error is a pipe that the control process passes on: failed assertions.

using proto::LogKind;

// Flags of a load in ModuleNote: what of the image may have an address that its client has. Without either it may lie anywhere.
inline constexpr std::uint32_t kLoadHasVariables = 1;        // in a copy for one client
inline constexpr std::uint32_t kLoadTakesCodeAddresses = 2;  // image::CubinInfo

// Flags of SessionPause. Stay lets the session go on, even after SessionPaused 0; so the answer has the flags and the order's number: one that crosses
// a Stay says nothing any more. To rest: SessionPaused 0 says besides that no call of it is under way. Without variables: where it is to go they
// could not be had.
inline constexpr std::uint32_t kPauseToRest = 1;
inline constexpr std::uint32_t kPauseDespiteVariables = 2;
inline constexpr std::uint32_t kPauseWithoutVariables = 4;

// Flag of Starved. As things are the session cannot go on elsewhere with what it has (Session::is_movable): the call waits on.
inline constexpr std::uint32_t kStarvesInPlace = 1;

// Flags of ImageWant: ImageTarget's.
inline constexpr std::uint32_t kImageHasObjects = 1;
inline constexpr std::uint32_t kImageForTexts = 2;
inline constexpr std::uint32_t kImageIsInput = 4;  // ImageCheck: looked through, nothing is made of it; `purpose` is its CUjitInputType

struct ExecutorHeader {
  ExecutorMessage type{};
  std::uint32_t status = 0;   // CUresult
  std::uint64_t session = 0;  // 0 where none is meant
};

// One structure serves all types; unused members are 0.
struct ExecutorPacket {
  ExecutorHeader header;
  std::uint64_t object = 0;      // printed: where it begins; chunk: address; segment: id; image: id; starved: the session that blocks;
                                 // module_note, load_replay: image id, a stream's priority (as int64), a graph's ChainPool::LogEntry,
                                 // how many side contexts there are with it; session_pause(d), variables_check(ed): number of the order;
                                 // memory_want, memory_grant, memory_back: number of the question; piece_ended: number of the piece
  std::uint64_t address = 0;     // segment_add/restore (pinned): where to map; module_note, load_replay: number of the loaded copy; image_want,
                                 // link_want, image_give: number of the question; chunk_created: of the grant, 0: none; piece_add, piece_taken: of the
                                 // piece
  std::uint64_t size_bytes = 0;  // fault: progress_tick() at that moment; session_open: how much device memory its user may have, 0: no limit
  std::uint32_t purpose = 0;     // proto::SegmentPurpose; module_note, load_replay: LogKind; piece_add: CUexternalMemoryHandleType, 0: a session's;
                                 // image_want: compute capability, 90 for 9.0; image_check: CUjitInputType
  std::uint32_t flags = 0;       // segment_restore: registration flags; session_pause(d): kPause...; starved: kStarves...; module_note: kLoad...;
                                 // image_want: kImage...
  std::uint64_t epoch = 0;       // session_open
  std::uint32_t client_pid = 0;  // session_open; link_want: of the process that asks
  std::uint32_t client_uid = 0;
  proto::Lease device_lease;  // session_open, lease_add, lease_restore
  proto::Lease pinned_lease;
  char text[256] = {};  // fault: what failed; starved: what waits; image_give: why not; for the log
};

}  // namespace mpsshim::broker
