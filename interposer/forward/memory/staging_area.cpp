// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/staging_area.hpp"

#include <algorithm>

namespace mpsshim::interposer::forward {

std::optional<std::uint32_t> StagingArea::find_run(std::uint32_t from, std::uint32_t to, std::uint32_t count) const {
  std::uint32_t run = 0;
  for (std::uint32_t granule = from; granule < to; ++granule) {
    run = used_[granule] ? 0 : run + 1;
    if (run == count) return granule + 1 - count;
  }
  return std::nullopt;
}

void StagingArea::mark(std::uint32_t first, std::uint32_t count, bool used) {
  std::fill_n(used_.begin() + first, count, used);
  free_ = used ? free_ - count : free_ + count;
}

std::optional<StagingPiece> StagingArea::take(std::uint64_t bytes) {
  const std::uint32_t count = granules(bytes);
  if (count == 0 || count > free_) return std::nullopt;
  std::optional<std::uint32_t> first = find_run(cursor_, kGranules, count);
  if (!first) first = find_run(0, kGranules, count);
  if (!first) return std::nullopt;
  mark(*first, count, true);
  cursor_ = (*first + count) % kGranules;
  return StagingPiece{*first * kGranuleBytes, bytes};
}

void StagingArea::give_back(const StagingPiece& piece) {
  mark(static_cast<std::uint32_t>(piece.offset / kGranuleBytes), granules(piece.size_bytes), false);
}

}  // namespace mpsshim::interposer::forward
