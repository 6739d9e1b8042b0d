// SPDX-License-Identifier: Apache-2.0
// Which sessions of the process reach what others have allocated, and why: contexts that have enabled it (cuCtxEnablePeerAccess), pools
// (cuMemPoolSetAccess). Contexts of a device are one session, and allocations of several lie in one chunk, so all that a session has allocated is
// reached as long as there is one reason: chunks that are there, and each later one before its addresses are given to anybody.
//
// One for the process. Any thread. Chunks of one owner come and go, and are reached, under that session's growth lock (DeviceMemory).
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <tuple>

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/address_range.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

// Whether the hardware lets `device` reach memory of `owner`, both this process's numbers.
[[nodiscard]] bool can_access(CUdevice device, CUdevice owner);

class PeerAccess {
 public:
  [[nodiscard]] static PeerAccess& instance();

  struct Reason {
    std::uint32_t by = 0;        // the session whose device reaches
    std::uint32_t owner = 0;     // the session whose memory it is
    std::uint64_t accessor = 0;  // a context; 0: of a pool
    std::uint64_t opened = 0;    // a context, or a pool
    auto operator<=>(const Reason&) const = default;
  };
  // CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED: the reason is there.
  [[nodiscard]] CUresult enable(const Reason& reason);
  // CUDA_ERROR_PEER_ACCESS_NOT_ENABLED: it is not.
  [[nodiscard]] CUresult disable(const Reason& reason);
  [[nodiscard]] bool is_enabled(const Reason& reason) const;
  // A context or a pool ends, and every reason with it.
  void forget(std::uint64_t ended);

  // Of the session that the calling thread acts for, under its growth lock. A chunk that is not reached after all is to be given back.
  [[nodiscard]] CUresult chunk_added(const AddressRange& chunk);
  void chunk_leaves(std::uint64_t address);
  void lease_ends(std::uint64_t address);
  // Work of those that reach the acting session's memory: waited for before some of it is given back.
  void finish_work();

 private:
  [[nodiscard]] std::set<std::uint32_t> who_reaches(std::uint32_t owner) const;
  [[nodiscard]] static CUresult open(std::uint32_t by, std::uint32_t owner, std::span<const AddressRange> chunks);

  mutable Mutex mutex_;  // held for look-ups
  std::set<Reason> reasons_ GUARDED_BY(mutex_);
};

}  // namespace mpsshim::interposer::forward
