// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/staging_area.hpp"

#include <algorithm>

namespace mpsshim::interposer::forward {

void StagingArea::add_block(std::uint64_t address, std::uint64_t bytes) {
  const auto count = static_cast<std::uint32_t>(bytes / kGranuleBytes);
  blocks_.push_back({address, std::vector<std::uint8_t>(count, 0), count, 0});
  total_ += count;
  free_ += count;
}

std::optional<std::uint32_t> StagingArea::find_run(const Block& block, std::uint32_t from, std::uint32_t count) {
  std::uint32_t run = 0;
  for (auto granule = from; granule < block.used.size(); ++granule) {
    run = block.used[granule] != 0 ? 0 : run + 1;
    if (run == count) return granule + 1 - count;
  }
  return std::nullopt;
}

void StagingArea::mark(Block& block, std::uint32_t first, std::uint32_t count, bool used) {
  std::fill_n(block.used.begin() + first, count, used ? 1 : 0);
  block.free = used ? block.free - count : block.free + count;
  free_ = used ? free_ - count : free_ + count;
}

std::optional<StagingPiece> StagingArea::take(std::uint64_t bytes, std::uint32_t word) {
  const std::uint64_t wanted = granules(bytes);
  if (wanted == 0 || wanted > free_ || held_[word] + wanted > total_ / 2) return std::nullopt;
  const auto count = static_cast<std::uint32_t>(wanted);  // at most total_
  for (std::size_t looked = 0; looked < blocks_.size(); ++looked) {
    const std::size_t index = (current_ + looked) % blocks_.size();
    Block& block = blocks_[index];
    if (block.free < count) continue;
    std::optional<std::uint32_t> first = find_run(block, block.cursor, count);
    if (!first) first = find_run(block, 0, count);
    if (!first) continue;
    mark(block, *first, count, true);
    block.cursor = *first + count;
    current_ = index;
    held_[word] += count;
    return StagingPiece{block.address + *first * kGranuleBytes, bytes, static_cast<std::uint32_t>(index), word};
  }
  return std::nullopt;
}

void StagingArea::give_back(const StagingPiece& piece) {
  Block& block = blocks_[piece.block];
  const auto count = static_cast<std::uint32_t>(granules(piece.size_bytes));
  mark(block, static_cast<std::uint32_t>((piece.address - block.address) / kGranuleBytes), count, false);
  held_[piece.word] -= count;
}

}  // namespace mpsshim::interposer::forward
