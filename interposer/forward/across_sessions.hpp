// SPDX-License-Identifier: Apache-2.0
// What concerns several sessions of a process at once: whose an address is, and copies between devices (waits for events: peer_waits.hpp). None of
// this is reached by a process with one session. Any thread.
//
// A copy between devices is one of the driver's where a session reaches both ends (peer_access.hpp). Else it goes through memory of this process, as
// with NVIDIA's driver where peer access is not enabled. A stream that copies so is held back by a host function of the library's own
// (host_functions.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/copy.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

// The session in whose device ranges the address lies.
[[nodiscard]] std::optional<std::uint32_t> session_holding(std::uint64_t address);
// The session that has pinned or registered the host memory that holds it.
[[nodiscard]] std::optional<std::uint32_t> session_that_made(std::uint64_t address);

// A call without a stream is in the order of the current context's NULL stream (or the thread's own), also where its memory makes it another
// session's call. Around such a call: behind what that stream has, and what the call has begun is done.
[[nodiscard]] CUresult begin_in_current_order();
[[nodiscard]] CUresult end_in_current_order(CUresult result);
// f(Stream&) with the stream of calls that name none.
template <typename F>
[[nodiscard]] CUresult in_default_stream(F&& f) {
  if (has_several_sessions()) {
    if (const CUresult error = begin_in_current_order(); error != CUDA_SUCCESS) return error;
  }
  Stream* const stream = Streams::instance().default_stream();
  if (stream == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = f(*stream);
  return has_several_sessions() ? end_in_current_order(result) : result;
}

// Whether a side is device memory of another session than the one that the calling thread acts for.
[[nodiscard]] bool is_across(const CopySide& destination, const CopySide& source);
// Whether the session that the calling thread acts for can make the copy by itself.
[[nodiscard]] bool reaches_both(const CopySide& destination, const CopySide& source, std::size_t bytes);
// The session that can, of two ends with different extents: one of those whose memory they are, or the acting one.
struct CopyEnd {
  CopySide side;
  std::size_t bytes = 0;
};
[[nodiscard]] std::optional<std::uint32_t> session_reaching(const CopyEnd& destination, const CopyEnd& source);
// What the default streams of both sessions have is done; that of one.
[[nodiscard]] CUresult finish_default_streams(const CopySide& destination, const CopySide& source);
[[nodiscard]] CUresult finish_default_stream(std::uint32_t session);
// f(stream) in the session's name, with a stream of it that no program knows: what is posted there waits for nothing of the program's. Then all of it
// is done.
[[nodiscard]] CUresult in_copy_stream(std::uint32_t session, const std::function<CUresult(Stream&)>& f);
// Behind what the default streams of both sessions have; done when it returns.
[[nodiscard]] CUresult copy_across_now(CopySide destination, CopySide source, std::size_t bytes);
// Copies in streams' order that have not been made yet: waited for before device memory is given back, which they may be about to use.
void finish_copies_across();
// In the stream's order.
[[nodiscard]] CUresult copy_across_later(Stream& stream, CopySide destination, CopySide source, std::size_t bytes);

}  // namespace mpsshim::interposer::forward
