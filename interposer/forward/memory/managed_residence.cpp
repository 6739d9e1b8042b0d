// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/managed_residence.hpp"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <mutex>
#include <vector>

#include "interposer/forward/begin.hpp"
#include "interposer/forward/memory/managed_advice.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/forward/memory/sync_memops.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/log.hpp"

namespace mpsshim::interposer::forward {

namespace {

using Clock = std::chrono::steady_clock;

// What is under way may be a kernel that waits for the program: then the memory stays where it is.
constexpr std::chrono::milliseconds kMostForWork{200};
constexpr long kLookNs = 50'000;

std::atomic<bool> kernels_add_for_system{false};  // of the process

}  // namespace

bool ManagedResidence::is_for_host(const ManagedAllocation& allocation) {
  if (!allocation.is_alone || has_several_sessions() || kernels_add_for_system.load()) return false;
  bool is_for_host = true, is_sent = true;
  ManagedAdvice::instance().visit(allocation.pages, [&](const Advice& advice) {
    is_for_host &= advice.prefers_host();
    is_sent &= advice.is_sent_to_device;
  });
  return is_for_host && !is_sent;
}

void ManagedResidence::follow_advice(std::uint64_t address) { (void)settle_within(address, true, kMostForWork); }

bool ManagedResidence::settle_within(std::uint64_t address, bool may_be_on_host, std::chrono::milliseconds limit) {
  const auto until = Clock::now() + limit;
  while (!settle(address, may_be_on_host)) {
    if (Clock::now() >= until) return false;
    const timespec pause{0, kLookNs};
    nanosleep(&pause, nullptr);
  }
  return true;
}

bool ManagedResidence::settle(std::uint64_t address, bool may_be_on_host) {
  const auto is_settled = [&](const ManagedAllocation* allocation) {
    return allocation == nullptr || allocation->lives_on_host == (may_be_on_host && is_for_host(*allocation));
  };
  std::uint64_t posted = 0;
  {
    const std::lock_guard lock(memory_.order_);
    if (is_settled(memory_.find(address))) return true;
    posted = memory_.posted_;
  }
  // All work, for the executor waits for all: one kernel that waits for this thread would be enough. Not under order_: Streams' mutex comes first.
  bool have_all_ended = false;
  if (Streams::instance().look_at_all(have_all_ended) != CUDA_SUCCESS) return true;
  if (!have_all_ended) return false;
  const std::lock_guard lock(memory_.order_);
  ManagedAllocation* const allocation = memory_.find(address);
  if (is_settled(allocation)) return true;
  if (memory_.posted_ != posted || allocation->is_served) return false;
  if (allocation->lives_on_host) {
    move_to_device(*allocation);
  } else {
    move_to_host(*allocation);
  }
  return true;
}

// From here the host's copy is the current one, so it may migrate as before where the rest cannot be done.
void ManagedResidence::move_to_host(ManagedAllocation& allocation) {
  if (memory_.end_beside() != CUDA_SUCCESS || download(allocation) != CUDA_SUCCESS) return;
  open_all(allocation);
  proto::ChunkResidenceRecord record{};
  record.address = allocation.pages.address;
  record.segment = PinnedMemory::instance().segment_of(allocation.shadow);
  record.is_on_host = true;
  proto::ChunkResidenceReply reply{};
  if (session().call_kept(record, {}, reply, allocation.residence) != CUDA_SUCCESS) return;
  allocation.lives_on_host = true;
  SyncMemops::instance().count_on_host(1);
}

CUresult ManagedResidence::download(const ManagedAllocation& allocation) {
  const std::vector<BlockRun> stale = allocation.coherence.stale_on_host({0, allocation.coherence.size()});
  for (const BlockRun& run : stale) {
    const AddressRange range = allocation.range_of(run);
    const std::uint64_t to = allocation.shadow + (range.address - allocation.pages.address);
    if (const CUresult error = memory_.post_copy(*memory_.copies_, to, false, range.address, range.size_bytes); error != CUDA_SUCCESS) return error;
  }
  if (stale.empty()) return CUDA_SUCCESS;
  FenceTarget copied{memory_.copies_->word, 0};
  if (const CUresult error = Streams::instance().fence(*memory_.copies_, copied.value); error != CUDA_SUCCESS) return error;
  return session().wait_fence(copied.word, copied.value, "managed memory to reach the host");
}

void ManagedResidence::open_all(ManagedAllocation& allocation) {
  Coherence& coherence = allocation.coherence;
  allocation.earlier.clear();
  allocation.prefetches.clear();
  coherence.downloaded({0, coherence.size()});
  for (std::size_t block = 0; block < coherence.size();) {
    const Coherence::Opening opening = coherence.opening(block, true, memory_.watch_->tells_writes());
    if (opening.blocks.count == 0) {
      ++block;
      continue;
    }
    coherence.opened(opening);
    (void)memory_.watch_->open(allocation.range_of(opening.blocks), opening.access);  // else a touch does
    block = opening.blocks.end();
  }
}

void ManagedResidence::move_to_device(ManagedAllocation& allocation) {
  proto::ChunkResidenceRecord record{};
  record.address = allocation.pages.address;
  proto::ChunkResidenceReply reply{};
  Answer answer;
  // An executor that came meanwhile has it on the host again, by the recipe.
  const auto forget = [&](Link& link) {
    if (link.epoch() != answer.epoch || !Channel::is_active(link)) return false;
    session().recipes().forget(allocation.residence);
    return true;
  };
  do {
    answer = Answer{};
    if (session().channel().call({}, record, {}, reply, &answer) != CUDA_SUCCESS) return;  // the session has ended
  } while (!session().channel().locked(forget));
  allocation.lives_on_host = false;
  SyncMemops::instance().count_on_host(-1);
}

bool ManagedResidence::bring_back(std::chrono::milliseconds limit) {
  std::vector<std::uint64_t> on_host;
  {
    const std::lock_guard lock(memory_.order_);
    for (const auto& [address, allocation] : memory_.allocations_) {
      if (allocation->lives_on_host) on_host.push_back(address);
    }
  }
  return std::ranges::all_of(on_host, [&](std::uint64_t address) { return settle_within(address, false, limit); });
}

void ManagedResidence::note_system_atomics() {
  if (kernels_add_for_system.exchange(true) || !ManagedMemory::in_use()) return;
  if (ManagedResidence().bring_back(kMostForWork)) return;
  log_line(
      "Kernels of this program have atomic operations that are to exclude the host's, and managed memory that it wants on the host cannot leave it, "
      "since its kernels are at work: where both add to one word at the same moment, one change may be lost. Give the advice later, or none.");
}

}  // namespace mpsshim::interposer::forward
