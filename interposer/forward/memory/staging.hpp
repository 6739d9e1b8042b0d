// SPDX-License-Identifier: Apache-2.0
// Copies from and to pageable host memory, through memory that the executor has registered: pinned memory of our own, a small block at the
// first such copy, more as copies go on. Any thread.
//
// Upload: the bytes are in staging memory when the function returns, so the caller's buffer may change; the copy itself is a record of the
// stream. Download: returns when the bytes are in the caller's buffer, as CUDA does for pageable memory. Large copies go in pieces, several
// in flight, so that copying here (by several threads: CopyCrew) and copying there overlap.
//
// A thread that has pieces in hand never waits for room: it first passes on what it has. So threads cannot wait for each other in a circle.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/staging_area.hpp"
#include "interposer/forward/streams.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

using Space = proto::MemorySpace;

class Staging {
 public:
  [[nodiscard]] static Staging& instance();

  // The source has been read when upload() returns. `is_synchronous`: what the session posts later comes after it, in whatever stream.
  [[nodiscard]] CUresult upload(Stream& stream, std::uint64_t destination, Space space, const void* source, std::size_t bytes, bool is_synchronous);
  [[nodiscard]] CUresult download(Stream& stream, void* destination, std::uint64_t source, Space space, std::size_t bytes);

  // Parts for copies of more dimensions (box_staging.cpp). Before all: the first block is there.
  [[nodiscard]] CUresult open();
  // Room now, or nothing.
  [[nodiscard]] bool try_take(const Stream& stream, std::size_t bytes, StagingPiece& piece);
  [[nodiscard]] CUresult take(const Stream& stream, std::size_t bytes, StagingPiece& piece);
  void give_back(const StagingPiece& piece);
  // Posts what fill(record) describes, a copy from the piece to memory of `space`; the piece comes back by itself. After an error the caller
  // still has it.
  template <typename Record, typename Fill>
  [[nodiscard]] CUresult pass_on(Stream& stream, const StagingPiece& piece, Space space, Fill&& fill) {
    std::uint32_t target = 0;
    const auto fill_all = [&](Record& record, std::byte*) {
      fill(record);
      target = session().fences().posted(stream.word).load(std::memory_order_relaxed) + 1;  // what the stream's next fence will write
      if (target == 0) target = 1;
    };
    // Only what the host can see afterwards is something to wait for.
    const CUresult error = space == Space::device ? post_upload<Record>(stream, fill_all) : post_work<Record>(stream, 0, fill_all);
    if (error == CUDA_SUCCESS) lend(stream, piece, target);
    return error;
  }

 private:
  static constexpr std::uint64_t kFirstBlockBytes = 1 << 20;
  static constexpr std::uint64_t kBlockBytes = 4 << 20;
  static constexpr std::uint64_t kUsualBytes = 32 << 20;  // grown to by much use
  static constexpr std::uint64_t kMostBytes = 64 << 20;   // grown to where streams that stand still hold the rest
  static constexpr std::uint64_t kUseForGrowth = 8;       // grows when so many times its size has gone through it
  static constexpr std::size_t kMostPieceBytes = 1 << 20;

  [[nodiscard]] CUresult add_block(std::uint64_t bytes);
  void grow_if_used();
  [[nodiscard]] std::size_t piece_bytes(std::size_t left);
  // A piece of a copy that has `left` bytes to go; none if there is no room now and the caller may not wait.
  [[nodiscard]] CUresult next_piece(const Stream& stream, std::size_t left, bool may_wait, std::optional<StagingPiece>& piece);
  [[nodiscard]] CUresult wait_for_room(const Stream& stream, std::size_t bytes);
  // Nothing to wait for any more: the piece has come back within a moment, or there is new room.
  [[nodiscard]] bool has_grown_for(const StagingArea::Lent& oldest);
  void lend(Stream& stream, const StagingPiece& piece, std::uint32_t target);
  [[nodiscard]] CUresult pass_on(Stream& stream, const StagingPiece& piece, std::uint64_t destination, Space space, bool is_synchronous);
  [[nodiscard]] CUresult upload_in_pieces(Stream& stream, std::uint64_t destination, Space space, const std::byte* source, std::size_t bytes,
                                          bool is_synchronous);
  [[nodiscard]] CUresult download_in_pieces(Stream& stream, std::byte* destination, std::uint64_t source, Space space, std::size_t bytes);
  [[nodiscard]] CUresult fetch(Stream& stream, const StagingPiece& piece, std::uint64_t source, Space space, std::uint32_t& fence);

  Mutex growth_mutex_;  // one thread grows
  Mutex mutex_;         // area_ and used_bytes_
  StagingArea area_ GUARDED_BY(mutex_);
  std::uint64_t used_bytes_ GUARDED_BY(mutex_) = 0;  // since the last growth
  std::atomic<std::uint64_t> total_bytes_{0};
  std::atomic<std::uint64_t> unfenced_bytes_{0};  // passed on since a fence was last posted for room
  std::atomic<bool> cannot_grow_{false};
};

}  // namespace mpsshim::interposer::forward
