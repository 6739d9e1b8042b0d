// SPDX-License-Identifier: Apache-2.0
// Copies from and to pageable host memory, through a segment that the executor has registered. Made at the first such copy. Any thread.
//
// Upload: the bytes are in the segment when the function returns, so the caller's buffer may change; the copy itself is a record of the
// stream. Download: returns when the bytes are in the caller's buffer, as CUDA does for pageable memory. Large copies go in pieces, several
// in flight, so that copying here and copying there overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/staging_area.hpp"
#include "interposer/forward/streams.hpp"

namespace mpsshim::interposer::forward {

// CopyRecord's spaces, and pageable memory, which no record names.
enum class Space : std::uint8_t { device = 0, registered_host = 1, staging = 2, pageable = 3 };

class Staging {
 public:
  [[nodiscard]] static Staging& instance();

  [[nodiscard]] CUresult upload(Stream& stream, std::uint64_t destination, Space space, const void* source, std::size_t bytes);
  [[nodiscard]] CUresult download(Stream& stream, void* destination, std::uint64_t source, Space space, std::size_t bytes);

 private:
  static constexpr std::size_t kPieceBytes = 1 << 20;
  static constexpr std::size_t kPiecesInFlight = 4;  // of one download; an upload fences as often

  [[nodiscard]] CUresult open();
  [[nodiscard]] CUresult take(std::size_t bytes, StagingPiece& piece);
  [[nodiscard]] CUresult wait_for_room();
  void give_back(const StagingPiece& piece);
  void lend(const StagingPiece& piece, const Stream& stream, std::uint32_t target);

  std::mutex open_mutex_;
  std::mutex mutex_;  // area_
  StagingArea area_;
  std::atomic<std::byte*> memory_{nullptr};
  proto::Mapping mapping_;
};

}  // namespace mpsshim::interposer::forward
