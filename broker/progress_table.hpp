// SPDX-License-Identifier: Apache-2.0
// What every executor stream has issued and what of it is done: memory that only executor and control process map, so no client can forge it.
// `issued` is raised by the worker before it hands work to the driver; `completed` is written by the GPU in stream order. A session is busy
// while any of its streams has completed != issued, or holds records. Reuse, freeing, credits and guilt are decided by this table alone.
// It outlives the executor: after a crash the control process reads from it who had work in flight.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace mpsshim::broker {

inline constexpr std::uint32_t kProgressStreams = 4096;

struct alignas(64) StreamProgress {
  std::atomic<std::uint32_t> completed;     // written by the GPU, in a cache line of its own
  std::atomic<std::uint32_t> probe_number;  // likewise, behind `probe`: what a word held that the stream waits for (value_waits.cpp)
  std::atomic<std::uint64_t> probe;
  std::atomic<std::uint64_t> former_session;      // whose the stream was last, once it is in the pool; 0: nobody has left it yet
  std::atomic<std::uint32_t> former_end;          // when its work had ended at the latest, as in SeenEnd
  std::atomic<std::uint32_t> former_kinds;        // what it was
  std::atomic<std::uint32_t> wrote;               // as `launched`, for what may write to a variable of a module; written by the worker
  std::atomic<std::uint32_t> counts;              // the session's row of SessionCountsFile; written by the worker before the first work; 0: none
  alignas(64) std::atomic<std::uint32_t> issued;  // written by the worker that owns the session
  std::atomic<std::uint32_t> held;      // 1: the session's worker has records out of the ring that the driver has not got all of (NULL stream's word)
  std::atomic<std::uint64_t> session;   // 0: the stream is in the pool
  std::atomic<std::uint64_t> launches;  // handed to the driver since the session has the stream, and how many of them in graphs
  std::atomic<std::uint64_t> chained;
  std::atomic<std::uint32_t> launched;   // what `issued` was with the last launch: until `completed` comes to it a kernel is under way
  std::atomic<std::uint32_t> function;   // that launch's kernel: where its name begins in FunctionNames
  std::atomic<std::uint32_t> busy_seen;  // when the fault watch first saw it at work again; 0: it was idle at the last look
  std::atomic<std::uint32_t> touched;    // as `launched`, for all else that reads or writes clients' memory: copies, fills, writes, graphs of these
  std::atomic<std::uint64_t> end_seen;   // SeenEnd: what `completed` was when the fault watch last saw it move, and when that was
  std::atomic<std::uint32_t> probes;     // the last one sent: until `probe_number` is this, a copy of a client's word is under way
  std::atomic<std::uint32_t> kinds;      // of all that the session has issued in the stream: WorkKind, joined by |
};
static_assert(sizeof(StreamProgress) == 128);

// What may fault. Events, waits and words of the executor's own do not.
struct WorkKind {
  static constexpr std::uint32_t kernel = 1;
  static constexpr std::uint32_t memory = 2;  // and no kernel of a client's
};

struct ProgressTable {
  StreamProgress stream[kProgressStreams];
};

inline constexpr std::uint32_t kFunctionNamesBytes = 4u << 20;

// Names of the kernels that clients use, one behind the other, each ended by a zero; the first is empty and stands for an unknown one.
// Written once each by the executor; pages that hold no name take no memory.
struct FunctionNames {
  char text[kFunctionNamesBytes];
};

// The file that executor and control process share. Only the table is mapped for the GPU.
struct ProgressFile {
  ProgressTable table;
  FunctionNames names;
};

}  // namespace mpsshim::broker
