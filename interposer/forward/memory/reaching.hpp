// SPDX-License-Identifier: Apache-2.0
// Held by a thread that copies between ends of which it has seen that they are reached, until it has posted the copy, or the copy is done: no piece
// of another session's memory is closed meanwhile, in whatever session (PeerPieces::closing_mutex). Waits under it leave what pools have to give back
// for its end, since chunks may go with that, whose pieces are closed first. Not held twice.
#pragma once

#include <shared_mutex>

#include "interposer/forward/memory/memory_pools.hpp"
#include "interposer/forward/memory/peer_pieces.hpp"

namespace mpsshim::interposer::forward {

class Reaching {
 public:
  Reaching() = default;
  Reaching(const Reaching&) = delete;

 private:
  struct PoolsHeldBack {
    PoolsHeldBack() { MemoryPools::hold_back(true); }
    ~PoolsHeldBack() {
      if (MemoryPools::hold_back(false)) MemoryPools::instance().after_synchronize();
    }
  };

  PoolsHeldBack pools_;  // ends behind the lock
  std::shared_lock<SharedMutex> lock_{PeerPieces::closing_mutex()};
};

}  // namespace mpsshim::interposer::forward
