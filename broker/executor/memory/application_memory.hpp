// SPDX-License-Identifier: Apache-2.0
// Memory that a client creates and maps by itself, in ranges of addresses that it has reserved (CUDA's virtual memory management): a *piece* is
// what cuMemCreate made, by an id of the client's; a *mapping* is one piece, whole, at one address. The control process holds a handle of each
// piece until the client has released it and no mapping of it is left, so pieces outlive this executor; mappings are the client's recipes.
//
// Owned by MemoryMap, which knows the ranges and answers whether memory may be used. Thread safe (one lock, held around the driver's calls:
// they are short, but for creating much). Ids, addresses and sizes come from the client and are not trusted.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>

#include "broker/driver/driver.hpp"
#include "proto/cond_var.hpp"
#include "proto/ids.hpp"
#include "proto/mutex.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

class ControlLink;
class MemoryMap;

class ApplicationMemory {
 public:
  ApplicationMemory(const Driver& driver, ControlLink& control, CUdevice device, std::uint64_t session, MemoryMap& map)
      : driver_(driver), control_(control), device_(device), session_(session), map_(map) {}
  ApplicationMemory(const ApplicationMemory&) = delete;

  // Whether the control process's name of a piece of memory is one of these, not the address of a chunk.
  [[nodiscard]] static bool is_piece(std::uint64_t object) { return proto::MemoryId{object}.has_kind(); }

  // `compression`: a CUmemAllocationCompType, which the driver may grant.
  [[nodiscard]] CUresult create(proto::MemoryId id, std::uint64_t size_bytes, std::uint32_t compression = CU_MEM_ALLOCATION_COMP_NONE);
  [[nodiscard]] CUresult properties(proto::MemoryId id, std::uint32_t& compression) const;
  // A piece that an earlier executor had.
  [[nodiscard]] CUresult adopt(proto::MemoryId id, std::uint64_t size_bytes, const proto::FileDescriptor& handle);
  // One that another session shares: from now on this session's as well.
  [[nodiscard]] CUresult adopt_shared(proto::MemoryId id, std::uint64_t size_bytes, const proto::FileDescriptor& handle);
  // The client has no handle to it any more.
  [[nodiscard]] bool release(proto::MemoryId id);

  [[nodiscard]] CUresult map(std::uint64_t address, std::uint64_t size_bytes, proto::MemoryId id, bool is_accessible);
  // Of whole mappings that lie side by side. What is forbidden is refused from forbid() on, and numbered as what is given up. set_access() makes it
  // known to the driver once the work up to that number has ended; what was allowed again, or forbidden anew, since then is left alone.
  [[nodiscard]] bool forbid(std::uint64_t address, std::uint64_t size_bytes);
  [[nodiscard]] bool allow(std::uint64_t address, std::uint64_t size_bytes);  // made so, and usable, by set_access() as well
  [[nodiscard]] CUresult set_access(std::uint64_t address, std::uint64_t size_bytes, std::uint64_t up_to);
  // Whether it is one mapping, which nobody is at: a worker may call set_access(), which waits for nobody then.
  [[nodiscard]] bool is_quick(std::uint64_t address, std::uint64_t size_bytes) const;
  // Refused from now on; taken out by unmap_forgotten(), which names the last number of MemoryMap's whose work has ended.
  [[nodiscard]] bool forget(std::uint64_t address);
  void unmap_forgotten(std::uint64_t address, std::uint64_t size_bytes, std::uint64_t up_to);
  [[nodiscard]] bool has_forgotten(std::uint64_t address, std::uint64_t size_bytes) const;
  [[nodiscard]] bool has_mappings(std::uint64_t address, std::uint64_t size_bytes) const;
  // When the session has ended.
  void release_all();

 private:
  struct Piece {
    std::uint64_t size_bytes = 0;
    CUmemGenericAllocationHandle handle = 0;
    unsigned mappings = 0;
    bool is_released = false;
    bool is_made = true;  // false: it is being made
  };
  struct Mapping {
    std::uint64_t size_bytes = 0;
    std::uint64_t piece = 0;
    std::uint64_t given_up = 0;   // 0: it is not forgotten
    std::uint64_t forbidden = 0;  // when it was; 0: it is allowed
    bool is_busy = false;         // a thread calls the driver for it, without the lock
  };
  using Mappings = std::map<std::uint64_t, Mapping>;

  [[nodiscard]] CUresult add(proto::MemoryId id, std::uint64_t size_bytes, CUmemGenericAllocationHandle handle) REQUIRES(mutex_);
  // The control process keeps the handle. `grant`: DeviceGrant::spend().
  void tell_created(proto::MemoryId id, std::uint64_t size_bytes, const proto::FileDescriptor& handle, std::uint64_t grant);
  [[nodiscard]] CUresult set_driver_access(std::uint64_t address, std::uint64_t size_bytes, bool is_accessible);
  // Whether usable mappings fill the range, none of them in part.
  [[nodiscard]] bool is_filled(std::uint64_t address, std::uint64_t size_bytes) const REQUIRES(mutex_);
  [[nodiscard]] bool note_access(std::uint64_t address, std::uint64_t size_bytes, std::uint64_t forbidden) REQUIRES(mutex_);
  // Has `call` made without the lock, nobody else being at the mapping meanwhile.
  template <typename Call>
  [[nodiscard]] CUresult unlocked(Mapping& mapping, Call&& call) REQUIRES(mutex_);
  void drop_if_unused(std::uint64_t id) REQUIRES(mutex_);
  // The first mapping that touches the range.
  [[nodiscard]] Mappings::iterator touching(std::uint64_t address, std::uint64_t size_bytes) REQUIRES(mutex_);

  const Driver& driver_;
  ControlLink& control_;
  const CUdevice device_;
  const std::uint64_t session_;
  MemoryMap& map_;
  mutable Mutex mutex_;  // never held while the driver is called for many, or large, pieces of memory: workers wait for it
  CondVar changed_;      // a mapping is not busy any more
  std::map<std::uint64_t, Piece> pieces_ GUARDED_BY(mutex_);  // by id
  Mappings mappings_ GUARDED_BY(mutex_);                      // by address
  std::set<std::uint64_t> forgotten_ GUARDED_BY(mutex_);      // those that are given up
  std::set<std::uint64_t> live_ GUARDED_BY(mutex_);           // those that are not
};

}  // namespace mpsshim::broker
