// SPDX-License-Identifier: Apache-2.0
// Which parts of the staging segment are in use. A piece is taken, filled or awaited by a copy, and comes back when its stream's fence word
// has reached a value, or at once. Pieces come back in any order, so one stream that hangs holds its own pieces only.
// Bookkeeping alone; not thread safe: Staging holds a lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "proto/ids.hpp"

namespace mpsshim::interposer::forward {

struct StagingPiece {
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
};

class StagingArea {
 public:
  static constexpr std::uint64_t kGranuleBytes = 16 * 1024;
  static constexpr std::uint32_t kGranules = 1024;
  static constexpr std::uint64_t kBytes = kGranuleBytes * kGranules;

  // A piece whose copy has been posted: it is free once `word` has reached `target`, which the next fence of `stream` will write.
  struct Lent {
    StagingPiece piece;
    proto::StreamId stream;
    std::uint32_t word = 0;
    std::uint32_t target = 0;
  };

  // Room for `bytes`; nothing if there is none now. 1 <= bytes <= kBytes.
  [[nodiscard]] std::optional<StagingPiece> take(std::uint64_t bytes);
  void lend(const Lent& lent) { lent_.push_back(lent); }
  void give_back(const StagingPiece& piece);

  // Gives back what is lent and `reached(word, target)`. True if anything came back.
  template <typename Reached>
  bool reclaim(Reached&& reached) {
    std::size_t kept = 0;
    for (const Lent& lent : lent_) {
      if (reached(lent.word, lent.target)) {
        give_back(lent.piece);
      } else {
        lent_[kept++] = lent;
      }
    }
    const bool any = kept != lent_.size();
    lent_.resize(kept);
    return any;
  }

  [[nodiscard]] const std::vector<Lent>& lent() const { return lent_; }
  [[nodiscard]] std::uint32_t free_granules() const { return free_; }

 private:
  [[nodiscard]] static std::uint32_t granules(std::uint64_t bytes) { return static_cast<std::uint32_t>((bytes + kGranuleBytes - 1) / kGranuleBytes); }
  [[nodiscard]] std::optional<std::uint32_t> find_run(std::uint32_t from, std::uint32_t to, std::uint32_t count) const;
  void mark(std::uint32_t first, std::uint32_t count, bool used);

  std::array<bool, kGranules> used_{};
  std::uint32_t cursor_ = 0;  // the search goes on where the last one ended
  std::uint32_t free_ = kGranules;
  std::vector<Lent> lent_;
};

}  // namespace mpsshim::interposer::forward
