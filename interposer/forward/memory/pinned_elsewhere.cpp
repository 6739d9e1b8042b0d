// SPDX-License-Identifier: Apache-2.0
// Pinned and managed memory that one session of the process has made, in the others: each of their executors maps the same file at the same address,
// so that kernels of every device reach it by the pointer that the program has.
#include <atomic>
#include <iterator>

#include "interposer/forward/memory/managed_memory.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/forward/other_sessions.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::forward {

namespace {

struct Joined {
  std::atomic<bool> has{false};
};
Joined& joined() {
  return PerSession<Joined>::get([] { return new Joined(); });
}

// f(index) for each session but the acting one that is there, in its name, until one fails.
template <typename F>
CUresult for_each_other(F&& f) {
  CUresult error = CUDA_SUCCESS;
  for_each_other_session([&](std::uint32_t index) {
    if (error == CUDA_SUCCESS && is_session_alive()) error = f(index);
  });
  return error;
}

}  // namespace

Mutex& PinnedMemory::opening() {
  static Mutex& mutex = *new Mutex();  // calls arrive after destructors have run
  return mutex;
}

std::vector<std::uint64_t> PinnedMemory::addresses() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> all;
  for (const auto& [address, allocation] : allocations_) {
    if (allocation.is_programs()) all.push_back(address);
  }
  return all;
}

CUresult PinnedMemory::join() {
  std::atomic<bool>& has_joined = joined().has;
  if (has_joined.load(std::memory_order_acquire)) return CUDA_SUCCESS;
  const std::lock_guard lock(opening());
  if (has_joined.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  const std::uint32_t own = ActingSession::index();
  CUresult error = for_each_other([&](std::uint32_t) {
    PinnedMemory& theirs = instance();
    for (const std::uint64_t address : theirs.addresses()) {
      const CUresult opened = theirs.open_in(own, address);
      if (opened != CUDA_SUCCESS && is_session_alive()) return opened;
    }
    return CUDA_SUCCESS;
  });
  if (error == CUDA_SUCCESS) error = ManagedMemory::join();
  if (error == CUDA_SUCCESS) has_joined.store(true, std::memory_order_release);
  return error;
}

bool PinnedMemory::is_open_here(std::uint64_t address, std::uint64_t bytes) {
  const std::uint32_t own = ActingSession::index(), count = session_count();
  for (std::uint32_t index = 0; index < count; ++index) {
    if (index == own) continue;
    const ActingSession acting(index);
    const proto::Lease& pinned = session().pinned_lease();
    if (!session().is_attached() || address - pinned.address >= pinned.size_bytes) continue;
    const PinnedMemory& theirs = instance();
    const std::lock_guard lock(theirs.mutex_);
    const auto after = theirs.allocations_.upper_bound(address);
    if (after == theirs.allocations_.begin()) return false;
    const auto& [begin, allocation] = *std::prev(after);
    return AddressRange{begin, allocation.size_bytes}.holds(address, bytes) && allocation.elsewhere.contains(own);
  }
  return false;
}

CUresult PinnedMemory::open_elsewhere(std::uint64_t address) {
  const std::lock_guard lock(opening());
  return for_each_other([&](std::uint32_t other) { return open_in(other, address); });
}

// Under opening(), so that the allocation stays.
CUresult PinnedMemory::open_in(std::uint32_t other, std::uint64_t address) {
  proto::SegmentMapRecord record{};
  {
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(address);
    if (found == allocations_.end() || found->second.elsewhere.contains(other)) return CUDA_SUCCESS;
    record.flags = found->second.flags;
  }
  const ActingSession acting(other);
  CUresult error = session().open_peer_segment(address, record.segment);
  proto::SegmentMapReply reply{};
  if (error == CUDA_SUCCESS) error = session().channel().call({}, record, {}, reply);
  if (error == CUDA_SUCCESS && reply.device_address != address) error = CUDA_ERROR_NOT_SUPPORTED;
  if (error != CUDA_SUCCESS) return session().look() != CUDA_SUCCESS ? CUDA_SUCCESS : error;  // who is over needs nothing
  const std::lock_guard lock(mutex_);
  allocations_.at(address).elsewhere.emplace(other, record.segment);
  return CUDA_SUCCESS;
}

void PinnedMemory::finish_elsewhere(std::uint64_t address) {
  std::map<std::uint32_t, std::uint64_t> elsewhere;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = allocations_.find(address); found != allocations_.end()) elsewhere = found->second.elsewhere;
  }
  for (const auto& [other, segment] : elsewhere) {
    const ActingSession acting(other);
    (void)Streams::instance().synchronize_all();  // one that has failed has no work left
  }
}

void PinnedMemory::close_elsewhere(const Allocation& allocation) {
  for (const auto& [other, segment] : allocation.elsewhere) {
    const ActingSession acting(other);
    proto::SegmentUnmapRecord record{};
    record.segment = segment;
    (void)session().channel().post({}, record);
  }
}

}  // namespace mpsshim::interposer::forward
