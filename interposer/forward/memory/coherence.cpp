// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/coherence.hpp"

#include <algorithm>

namespace mpsshim::interposer::forward {

namespace {

void add(std::vector<BlockRun>& runs, std::size_t block) {
  if (!runs.empty() && runs.back().end() == block) {
    ++runs.back().count;
  } else {
    runs.push_back({block, 1});
  }
}

}  // namespace

Coherence::Coherence(std::size_t blocks, std::size_t most_blocks)
    : states_(blocks), most_blocks_(std::max<std::size_t>(most_blocks, 1)), end_(blocks) {}

Coherence::Opening Coherence::opening(std::size_t block, bool is_write, bool can_read) const {
  const State& state = states_[block];
  Opening opening;
  opening.access = is_write || !can_read ? HostAccess::write : HostAccess::read;
  if (state.access >= opening.access) return opening;
  opening.downloads = !state.on_host;
  const Last& last = opening.access == HostAccess::write ? last_write_ : last_read_;
  const std::size_t wanted = block == last.end ? std::min(last.count * 2, most_blocks_) : 1;
  opening.blocks.first = block;
  while (opening.blocks.count < wanted && opening.blocks.end() < states_.size() && states_[opening.blocks.end()] == state) ++opening.blocks.count;
  return opening;
}

void Coherence::opened(const Opening& opening) {
  for (std::size_t block = opening.blocks.first; block < opening.blocks.end(); ++block) {
    State& state = states_[block];
    state.access = opening.access;
    state.on_host = true;
    if (opening.access == HostAccess::write) state.on_device = false;
  }
  note_open(opening.blocks);
  Last& last = opening.access == HostAccess::write ? last_write_ : last_read_;
  last.end = opening.blocks.end();
  last.count = std::max<std::size_t>(opening.blocks.count, 1);
}

void Coherence::opened_beside(std::size_t block, HostAccess access) {
  states_[block] = {access, true, true};
  note_open({block, 1});
}

void Coherence::closed_beside(std::size_t block) { states_[block] = {HostAccess::none, false, true}; }

void Coherence::note_open(BlockRun blocks) {
  if (blocks.count == 0) return;
  const bool is_first = begin_ >= end_;
  begin_ = is_first ? blocks.first : std::min(begin_, blocks.first);
  end_ = is_first ? blocks.end() : std::max(end_, blocks.end());
}

Coherence::Closing Coherence::close() {
  Closing closing;
  for (std::size_t block = begin_; block < end_; ++block) {
    State& state = states_[block];
    if (state.access != HostAccess::none) add(closing.mapped, block);
    if (!state.on_device) add(closing.uploads, block);
    state = {HostAccess::none, false, true};
  }
  begin_ = end_ = 0;
  return closing;
}

std::vector<BlockRun> Coherence::stale_on_host(BlockRun blocks) const {
  std::vector<BlockRun> stale;
  for (std::size_t block = blocks.first; block < blocks.end(); ++block) {
    if (!states_[block].on_host) add(stale, block);
  }
  return stale;
}

void Coherence::downloaded(BlockRun blocks) {
  for (std::size_t block = blocks.first; block < blocks.end(); ++block) states_[block].on_host = true;
  note_open(blocks);
}

Coherence::Closing Coherence::clean(BlockRun blocks) {
  Closing closing;
  for (std::size_t block = blocks.first; block < blocks.end(); ++block) {
    State& state = states_[block];
    if (state.access == HostAccess::write) {
      add(closing.mapped, block);
      state.access = HostAccess::none;
    }
    if (!state.on_device) add(closing.uploads, block);
    state.on_device = true;
  }
  return closing;
}

}  // namespace mpsshim::interposer::forward
