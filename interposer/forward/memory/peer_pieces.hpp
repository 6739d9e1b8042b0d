// SPDX-License-Identifier: Apache-2.0
// Memory of the process's other sessions that this session's executor has mapped, at the addresses that it has there, so that this session's device
// reaches it: chunks (cuCtxEnablePeerAccess, pools) and what the application has mapped (cuMemSetAccess). A piece is opened by the name that its
// owner is given for it, as memory of another process is (shared_memory.hpp), in a range of addresses that the control process lends for this
// (PeerLease). After the executor was replaced ranges and pieces are there again, and mappings are made from recipes.
//
// Any thread. Who opens and closes pieces of one owner lets one thread in at a time (PeerAccess, VirtualMemory).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "gen/cuda_api.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/memory/address_range.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

class PeerPieces {
 public:
  [[nodiscard]] static PeerPieces& instance();

  // Held shared from the look at whether a copy's ends are reached to the posting of the copy: no piece is closed meanwhile, in whatever session.
  // (What is posted before a piece is closed may use it.) The process's; nothing of this class is called with it but what looks.
  [[nodiscard]] static SharedMutex& closing_mutex();

  // What session `owner` has at `range`: `object` is the address of a chunk, or a handle of VirtualMemory's. Without effect where it is open.
  [[nodiscard]] CUresult open(std::uint32_t owner, std::uint64_t object, const AddressRange& range);
  // The executor unmaps it once the session's work that was posted before has ended. Without effect where there is no such piece.
  void close(std::uint64_t address);
  // The range at `address` goes back, once its owner needs it no more. Nothing is open there.
  void end_lease(std::uint64_t address);

  // Whether [address, address + bytes) may be used: open here, and within an allocation of its owner's.
  [[nodiscard]] bool reaches(std::uint64_t address, std::uint64_t bytes) const;
  [[nodiscard]] bool has_pieces_of(std::uint32_t owner) const;

 private:
  struct Piece {
    std::uint64_t size_bytes = 0;
    std::uint32_t owner = 0;
    proto::MemoryId memory;
    RecipeBook::Key recipe = 0;
  };

  [[nodiscard]] bool is_open(std::uint64_t address) const;
  [[nodiscard]] CUresult ensure_lease(std::uint64_t address) REQUIRES(order_mutex_);
  [[nodiscard]] CUresult adopt(std::uint32_t owner, std::uint64_t object, Piece& piece);
  // The owner of all of it, where it is open.
  [[nodiscard]] bool find_owner(std::uint64_t address, std::uint64_t bytes, std::uint32_t& owner) const;

  Mutex order_mutex_;                                                       // held while the broker is asked; taken before mutex_
  std::map<std::uint64_t, std::uint64_t> leases_ GUARDED_BY(order_mutex_);  // by address: size
  mutable Mutex mutex_;                                                     // held for look-ups
  std::map<std::uint64_t, Piece> pieces_ GUARDED_BY(mutex_);                // by address
  std::atomic<bool> has_been_used_{false};                                  // others pay one load for each pointer
};

}  // namespace mpsshim::interposer::forward
