// SPDX-License-Identifier: Apache-2.0
// What a StreamQueue and the StreamSet that visits it tell each other. Values; the session's worker.
#pragma once

#include <cstddef>
#include <cstdint>

#include "broker/executor/streams/post_arrows.hpp"

namespace mpsshim::broker {

// Why a queue issues no more for now.
enum class StreamStop : std::uint8_t {
  empty,
  budget,        // the caller's share is used up
  credit,        // the GPU has to get on first
  held,          // by the quiet window
  fence,         // its fence will come any moment: asked again, it issues
  more,          // waits a moment for more launches
  event,         // waits for an event's record to be issued in another stream
  host,          // waits for a host function of the client, which rings when it has returned
  value,         // waits for a word's value
  output,        // what its kernels have printed is to be with the client first, or another session's
  needs_window,  // the head is a launch that would wait for every kernel: see take_window_launch()
  in_window,     // that launch is under way
};

// How a stream is ordered with others, as GreenStreamCreate has it.
enum class StreamOrder : std::uint8_t { none, blocking, null_stream };

// StreamSet's notes on this stream, and what the timeline has to have of it.
struct StreamNotes {
  bool is_active = false;             // in its list of streams with something to do
  bool is_to_change = false;          // to another context or priority: it issues nothing before that
  bool has_new_work = false;          // a blocking stream: since the NULL stream last waited for it
  bool is_null_stream = false;        // beside the session's own, of a context with a part of the multiprocessors; it is a blocking stream, too
  std::uint64_t null_version = 0;     // a blocking stream: the NULL stream's work that it has waited for
  std::uint64_t barrier_version = 0;  // the barriers it has waited for
  PostArrows arrows;
};

// Queued and not yet issued, over all streams of a session.
struct QueuedTotal {
  std::size_t records = 0;
  std::size_t bytes = 0;
};

}  // namespace mpsshim::broker
