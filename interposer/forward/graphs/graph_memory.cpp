// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/graphs/graph_memory.hpp"

#include <algorithm>

#include "interposer/forward/hooks.hpp"
#include "interposer/forward/memory/device_memory.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

GraphBlock::~GraphBlock() { GraphMemory::instance().let_go(range_.address); }

GraphMemory& GraphMemory::instance() {
  return PerSession<GraphMemory>::get([] { return new GraphMemory(); });
}

CUresult GraphMemory::allocate(std::uint64_t bytes, BlockRef& block) {
  std::uint64_t address = 0;
  if (const CUresult error = DeviceMemory::instance().allocate(bytes, nullptr, address); error != CUDA_SUCCESS) return error;
  block = std::make_shared<GraphBlock>(AddressRange{address, bytes});
  const std::lock_guard lock(mutex_);
  State& state = blocks_[address];
  state.size_bytes = bytes;
  state.block = block;
  total_bytes_ += bytes;
  high_bytes_ = std::max(high_bytes_, total_bytes_);
  has_been_used_.store(true, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

void GraphMemory::let_go(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  blocks_.at(address).is_held = false;
}

std::map<std::uint64_t, GraphMemory::State>::const_iterator GraphMemory::at(std::uint64_t address) const {
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return blocks_.end();
  --after;
  return address - after->first < after->second.size_bytes ? after : blocks_.end();
}

bool GraphMemory::holds(std::uint64_t address) const {
  if (!has_been_used_.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(mutex_);
  return at(address) != blocks_.end();
}

BlockRef GraphMemory::find(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  return found != blocks_.end() ? found->second.block.lock() : nullptr;
}

// A launch that allocates the block again comes behind what it was freed behind.
CUresult GraphMemory::free(std::uint64_t address, Stream* stream) {
  Event* event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(address);
    if (found == blocks_.end() || !found->second.is_unfreed) return CUDA_ERROR_INVALID_VALUE;
    event = found->second.freed;
  }
  if (stream != nullptr) {
    if (event == nullptr) {
      if (const CUresult error = Events::instance().create(CU_EVENT_DISABLE_TIMING, nullptr, event); error != CUDA_SUCCESS) return error;
    }
    if (const CUresult error = Events::instance().record(*event, *stream, CU_EVENT_RECORD_DEFAULT); error != CUDA_SUCCESS) return error;
  }
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return CUDA_ERROR_INVALID_VALUE;
  found->second.freed = event;
  found->second.is_unfreed = false;
  return CUDA_SUCCESS;
}

CUresult GraphMemory::begin_launch(const GraphMemoryUse& use, bool frees_first, Stream& stream) {
  if (use.blocks.empty()) return CUDA_SUCCESS;
  std::vector<Event*> behind;
  {
    const std::lock_guard lock(mutex_);
    const auto is_unfreed = [&](const BlockRef& block) REQUIRES(mutex_) { return blocks_.at(block->range().address).is_unfreed; };
    if (!frees_first && std::ranges::any_of(use.leaves, is_unfreed)) return CUDA_ERROR_INVALID_VALUE;
    if (!std::ranges::all_of(use.expects, is_unfreed)) return CUDA_ERROR_INVALID_VALUE;
    for (const BlockRef& block : use.blocks) {
      if (Event* event = blocks_.at(block->range().address).freed) behind.push_back(event);
    }
    for (const BlockRef& block : use.expects) blocks_.at(block->range().address).is_unfreed = false;
    for (const BlockRef& block : use.leaves) blocks_.at(block->range().address).is_unfreed = true;
  }
  for (Event* event : behind) {
    if (const CUresult error = Events::instance().wait_on_stream(*event, stream, CU_EVENT_WAIT_DEFAULT); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult GraphMemory::get_attribute(CUgraphMem_attribute attribute, cuuint64_t& value) {
  const std::lock_guard lock(mutex_);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: value = total_bytes_; return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: value = high_bytes_; return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult GraphMemory::set_attribute(CUgraphMem_attribute attribute, cuuint64_t value) {
  if (attribute != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH && attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) return CUDA_ERROR_INVALID_VALUE;
  if (value != 0) return CUDA_ERROR_INVALID_VALUE;  // a high-water mark can only be begun anew
  const std::lock_guard lock(mutex_);
  high_bytes_ = total_bytes_;
  return CUDA_SUCCESS;
}

void GraphMemory::reap() {
  if (!has_been_used_.load(std::memory_order_relaxed)) return;
  const auto is_over = [](const auto& entry) { return !entry.second.is_held && !entry.second.is_unfreed; };
  std::vector<std::pair<std::uint64_t, Event*>> ended;
  {
    const std::lock_guard lock(mutex_);
    for (auto block = blocks_.begin(); block != blocks_.end();) {
      if (!is_over(*block)) {
        ++block;
        continue;
      }
      ended.emplace_back(block->first, block->second.freed);
      total_bytes_ -= block->second.size_bytes;
      block = blocks_.erase(block);
    }
  }
  if (ended.empty() || synchronize_all_streams() != CUDA_SUCCESS) return;  // after a sticky error there is nobody to give it back to
  for (const auto& [address, event] : ended) {
    if (event != nullptr) (void)Events::instance().destroy(event->id);
    (void)DeviceMemory::instance().give_back(address);
  }
}

}  // namespace mpsshim::interposer::forward
