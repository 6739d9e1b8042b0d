// SPDX-License-Identifier: Apache-2.0
// Which parts of the staging memory are in use. The memory comes in blocks, which are added as they are needed and stay. A piece lies in one
// block; it is taken for a stream, filled or awaited by a copy, and comes back when the stream's fence word has reached a value, or at once.
// Pieces come back in any order, and one stream holds at most half of everything, so a stream that hangs does not stop the others' copies.
// Bookkeeping alone; not thread safe: Staging holds a lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "proto/channel.hpp"
#include "proto/ids.hpp"

namespace mpsshim::interposer::forward {

struct StagingPiece {
  std::uint64_t address = 0;  // the same here and in the executor
  std::uint64_t size_bytes = 0;
  std::uint32_t block = 0;
  std::uint32_t word = 0;  // fence word of the stream it was taken for
};

class StagingArea {
 public:
  static constexpr std::uint64_t kGranuleBytes = 4096;

  // A piece whose copy has been posted: it is free once its stream's word has reached `target`, which the next fence of `stream` will write.
  struct Lent {
    StagingPiece piece;
    proto::StreamId stream;
    std::uint32_t target = 0;
  };

  // `bytes` is a multiple of kGranuleBytes.
  void add_block(std::uint64_t address, std::uint64_t bytes);

  // Room for the stream with this fence word; nothing if there is none now, or the stream has its half.
  [[nodiscard]] std::optional<StagingPiece> take(std::uint64_t bytes, std::uint32_t word);
  void lend(const Lent& lent) { lent_.push_back(lent); }
  void give_back(const StagingPiece& piece);

  // Gives back what is lent and `reached(word, target)`. True if anything came back.
  template <typename Reached>
  bool reclaim(Reached&& reached) {
    std::size_t kept = 0;
    for (const Lent& lent : lent_) {
      if (reached(lent.piece.word, lent.target)) {
        give_back(lent.piece);
      } else {
        lent_[kept++] = lent;
      }
    }
    const bool any = kept != lent_.size();
    lent_.resize(kept);
    return any;
  }

  [[nodiscard]] const std::vector<Lent>& lent() const { return lent_; }  // the oldest first
  [[nodiscard]] std::uint64_t total_bytes() const { return total_ * kGranuleBytes; }
  [[nodiscard]] std::uint64_t free_bytes() const { return free_ * kGranuleBytes; }
  [[nodiscard]] std::uint64_t held_bytes(std::uint32_t word) const { return held_[word] * kGranuleBytes; }
  [[nodiscard]] std::uint64_t share_bytes() const { return total_ / 2 * kGranuleBytes; }  // what one stream may hold

 private:
  struct Block {
    std::uint64_t address = 0;
    std::vector<std::uint8_t> used;  // a granule each
    std::uint32_t free = 0;
    std::uint32_t cursor = 0;  // the search goes on where the last one ended
  };

  [[nodiscard]] static std::uint64_t granules(std::uint64_t bytes) { return bytes / kGranuleBytes + (bytes % kGranuleBytes != 0 ? 1 : 0); }
  [[nodiscard]] static std::optional<std::uint32_t> find_run(const Block& block, std::uint32_t from, std::uint32_t count);
  void mark(Block& block, std::uint32_t first, std::uint32_t count, bool used);

  std::vector<Block> blocks_;
  std::size_t current_ = 0;  // the block last taken from
  std::uint64_t total_ = 0;  // granules, as the next two
  std::uint64_t free_ = 0;
  std::array<std::uint64_t, proto::kFenceWords> held_{};
  std::vector<Lent> lent_;
};

}  // namespace mpsshim::interposer::forward
