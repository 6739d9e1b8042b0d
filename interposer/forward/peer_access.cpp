// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/peer_access.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <vector>

#include "interposer/forward/memory/device_memory.hpp"
#include "interposer/forward/memory/peer_pieces.hpp"
#include "interposer/forward/other_sessions.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::forward {

bool can_access(CUdevice device, CUdevice owner) { return peer_facts(device, owner).can_access != 0; }

PeerAccess& PeerAccess::instance() {
  static PeerAccess& access = *new PeerAccess();  // calls arrive after destructors have run
  return access;
}

std::set<std::uint32_t> PeerAccess::who_reaches(std::uint32_t owner) const {
  const std::lock_guard lock(mutex_);
  std::set<std::uint32_t> all;
  for (const Reason& reason : reasons_) {
    if (reason.owner == owner) all.insert(reason.by);
  }
  return all;
}

CUresult PeerAccess::open(std::uint32_t by, std::uint32_t owner, std::span<const AddressRange> chunks) {
  const ActingSession acting(by);
  PeerPieces& pieces = PeerPieces::instance();
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const CUresult error = pieces.open(owner, chunks[i].address, chunks[i]);
    if (error == CUDA_SUCCESS) continue;
    for (const AddressRange& opened : chunks.first(i)) pieces.close(opened.address);
    return error;
  }
  return CUDA_SUCCESS;
}

CUresult PeerAccess::enable(const Reason& reason) {
  const ActingSession acting(reason.owner);
  return DeviceMemory::instance().with_chunks([&](std::span<const AddressRange> chunks) {
    if (is_enabled(reason)) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    if (!who_reaches(reason.owner).contains(reason.by)) {
      if (const CUresult error = open(reason.by, reason.owner, chunks); error != CUDA_SUCCESS) return error;
    }
    const std::lock_guard lock(mutex_);
    reasons_.insert(reason);
    return CUDA_SUCCESS;
  });
}

CUresult PeerAccess::disable(const Reason& reason) {
  const ActingSession acting(reason.owner);
  return DeviceMemory::instance().with_chunks([&](std::span<const AddressRange> chunks) {
    {
      const std::lock_guard lock(mutex_);
      if (reasons_.erase(reason) == 0) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    }
    if (who_reaches(reason.owner).contains(reason.by)) return CUDA_SUCCESS;  // for another reason
    const ActingSession reaching(reason.by);
    for (const AddressRange& chunk : chunks) PeerPieces::instance().close(chunk.address);
    return CUDA_SUCCESS;
  });
}

bool PeerAccess::is_enabled(const Reason& reason) const {
  const std::lock_guard lock(mutex_);
  return reasons_.contains(reason);
}

void PeerAccess::forget(std::uint64_t ended) {
  std::vector<Reason> over;
  {
    const std::lock_guard lock(mutex_);
    std::ranges::copy_if(reasons_, std::back_inserter(over), [&](const Reason& one) { return one.accessor == ended || one.opened == ended; });
  }
  for (const Reason& reason : over) (void)disable(reason);
}

CUresult PeerAccess::chunk_added(const AddressRange& chunk) {
  if (!has_several_sessions()) return CUDA_SUCCESS;
  const std::uint32_t owner = ActingSession::index();
  for (const std::uint32_t by : who_reaches(owner)) {
    const CUresult error = open(by, owner, {&chunk, 1});
    if (error == CUDA_SUCCESS) continue;
    const ActingSession acting(by);
    if (session().look() != CUDA_SUCCESS) continue;  // it is over, by a fault on its device: this one's memory is there all the same
    return error;
  }
  return CUDA_SUCCESS;
}

void PeerAccess::chunk_leaves(std::uint64_t address) {
  for_each_other_session([&](std::uint32_t) { PeerPieces::instance().close(address); });
}

void PeerAccess::lease_ends(std::uint64_t address) {
  for_each_other_session([&](std::uint32_t) { PeerPieces::instance().end_lease(address); });
}

void PeerAccess::finish_work() {
  const std::uint32_t owner = ActingSession::index();
  for_each_other_session([&](std::uint32_t) {
    if (PeerPieces::instance().has_pieces_of(owner)) (void)Streams::instance().synchronize_all();  // one that has failed has no work left
  });
}

}  // namespace mpsshim::interposer::forward
