// SPDX-License-Identifier: Apache-2.0
// Touches beside work that takes long (touch_server.hpp): the program has a copy of a block for some milliseconds.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>

#include "interposer/forward/memory/managed_advice.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/forward/memory/touch_server.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/log.hpp"

namespace mpsshim::interposer::forward {

namespace {

// Kernels that run for so long may wait for the program, or have nothing to do with what it touches: it is let in beside them, the next time sooner.
// To write much later: as long as both take turns what both add to atomically is right.
constexpr std::chrono::milliseconds kLongToRead{200};
constexpr std::chrono::seconds kLongToWrite{2};
constexpr std::chrono::microseconds kStillLong{50};
// Then its changes go to the device and it touches again: a program that looks for a kernel's flag sees it by then. Long enough for a thread that has
// to get a busy processor first.
constexpr std::chrono::milliseconds kSpell{2};
// Pairs of copies of a block that a kernel goes on writing to.
constexpr unsigned kMostDownloads = 6;

}  // namespace

// Where the two cannot be told apart whoever looks may write.
bool TouchServer::has_to_write(const Pending& pending) const { return pending.touch.is_write || !watch_.tells_writes(); }

bool TouchServer::is_for_host(std::uint64_t address) {
  bool is_hosts = false;
  ManagedAdvice::instance().visit({address / proto::kPageBytes * proto::kPageBytes, proto::kPageBytes},
                                  [&](const Advice& advice) { is_hosts |= advice.is_for_host(); });
  return is_hosts;
}

// The work may use the block all the while: what the program gets is a copy of what is there now.
bool TouchServer::goes_beside(const Pending& pending) {
  const auto waited = Clock::now() - pending.since;
  if (waited < kStillLong) return false;
  const std::lock_guard lock(memory_.order_);
  ManagedMemory::Allocation* allocation = memory_.find(pending.allocation);
  if (allocation == nullptr || !allocation->prefetches.empty()) return false;  // the shadow is being written
  allocation->is_long_to_read |= waited > kLongToRead;
  allocation->is_long_to_write |= waited > kLongToWrite;
  if (has_to_write(pending)) return allocation->is_long_to_write;  // whatever is advised: both may add atomically to one word
  return allocation->is_long_to_read || is_for_host(pending.touch.address);
}

// A second place for a copy of one block, for as long as the allocation lives; only the touch that serves it uses it. Where there is no memory for it
// a single copy has to do. Not under order_: it asks the control process.
void TouchServer::have_second_copy(const Pending& pending) {
  std::uint64_t bytes = 0;
  {
    const std::lock_guard lock(memory_.order_);
    const ManagedMemory::Allocation* allocation = memory_.find(pending.allocation);
    if (allocation == nullptr || allocation->second_copy != 0) return;
    bytes = std::min(allocation->block_bytes, allocation->pages.size_bytes);
  }
  void* memory = nullptr;
  if (PinnedMemory::instance().allocate_alias(bytes, 0, nullptr, memory) != CUDA_SUCCESS) return;
  const std::lock_guard lock(memory_.order_);
  ManagedMemory::Allocation* allocation = memory_.find(pending.allocation);
  if (allocation == nullptr || allocation->second_copy != 0) return static_cast<void>(PinnedMemory::instance().release(memory));
  allocation->second_copy = reinterpret_cast<std::uintptr_t>(memory);
}

bool TouchServer::begin_beside(Pending& pending) {
  have_second_copy(pending);
  CUresult error = CUDA_SUCCESS;
  {
    const std::lock_guard lock(memory_.order_);
    ManagedMemory::Allocation* allocation = memory_.find(pending.allocation);
    if (allocation == nullptr) return let_go(pending);
    const std::size_t block = (pending.touch.address - allocation->pages.address) / allocation->block_bytes;
    error = memory_.end_reading_beside(*allocation, block);
    pending.opening = {{block, 1}, has_to_write(pending) ? HostAccess::write : HostAccess::read, true};
    pending.is_open_beside = allocation->coherence.access(block) != HostAccess::none;
    pending.targets.clear();
    if (error == CUDA_SUCCESS && !pending.is_open_beside) error = download_beside(*allocation, pending);
    pending.stage = Stage::beside;
  }
  if (error != CUDA_SUCCESS) return give_up(pending, error);
  if (pending.opening.access == HostAccess::write) tell(pending);
  return false;
}

// A copy that is made while a kernel writes may have a word, and not what was written before it. Where two in a row are alike the second has both:
// what the first found had been there before the second began. Posted together, nothing but the stream is between them.
CUresult TouchServer::download_beside(ManagedMemory::Allocation& allocation, Pending& pending) {
  const AddressRange range = allocation.range_of(pending.opening.blocks);
  const std::uint64_t shadow = allocation.shadow + (range.address - allocation.pages.address);
  ++pending.downloads;
  for (const std::uint64_t to : {allocation.second_copy, shadow}) {
    if (to == 0) continue;
    if (const CUresult error = memory_.post_copy(*memory_.copies_, to, false, range.address, range.size_bytes); error != CUDA_SUCCESS) return error;
  }
  FenceTarget target{memory_.copies_->word, 0};
  const CUresult error = Streams::instance().fence(*memory_.copies_, target.value);
  pending.targets = {{session_, target}};
  return error;
}

bool TouchServer::is_settled(const ManagedMemory::Allocation& allocation, const Pending& pending) {
  if (pending.is_open_beside || allocation.second_copy == 0 || pending.downloads >= kMostDownloads) return true;
  const std::span<const std::byte> contents = allocation.contents(pending.opening.blocks);
  return std::memcmp(host_pointer(allocation.second_copy), contents.data(), contents.size()) == 0;
}

bool TouchServer::open_beside(Pending& pending) {
  CUresult error = CUDA_SUCCESS;
  {
    const std::lock_guard lock(memory_.order_);
    ManagedMemory::Allocation* allocation = memory_.find(pending.allocation);
    if (allocation == nullptr) return let_go(pending);
    if (is_settled(*allocation, pending)) {
      ManagedMemory::Beside beside;
      beside.block = pending.opening.blocks.first;
      const std::span<const std::byte> contents = allocation->contents(pending.opening.blocks);
      if (pending.opening.access == HostAccess::write) beside.before.assign(contents.begin(), contents.end());
      beside.until = Clock::now() + kSpell;
      next_end_ = std::min(next_end_, beside.until);
      allocation->coherence.opened_beside(beside.block, pending.opening.access);
      allocation->beside.push_back(std::move(beside));
      return let_in(*allocation, pending);
    }
    error = download_beside(*allocation, pending);
  }
  return error != CUDA_SUCCESS && give_up(pending, error);
}

void TouchServer::tell(const Pending& pending) {
  if (std::exchange(has_told_, true)) return;
  log_line(
      "The program writes to managed memory, address %#llx, while its kernels have been at work for 2 s: what it changes reaches them within "
      "milliseconds. If both change the same word at the same moment, by atomic operations too, run it with MPSSHIM_MANAGED=host.",
      static_cast<unsigned long long>(pending.touch.address));
}

}  // namespace mpsshim::interposer::forward
