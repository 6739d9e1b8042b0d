// SPDX-License-Identifier: Apache-2.0
// CUDA's virtual memory management for the application (Driver API manual, "Virtual Memory Management"): ranges of addresses, memory, and what is
// mapped where. Ranges lie in this process's leased device addresses; the executor maps, the control process keeps the memory.
//
// Any thread. Operations follow each other under one lock, which is held while the executor is asked; looking up what an address is takes another,
// short one. After an executor was replaced ranges and mappings are made again from recipes, at the same addresses; memory is still there.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>

#include "gen/cuda_api.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/memory/address_range.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

// The device that has memory of which the broker told this number (1 + its own of the device; 0: the session's). The session's also where this
// process does not see it.
[[nodiscard]] CUdevice device_having(std::uint32_t told);

class VirtualMemory {
 public:
  [[nodiscard]] static VirtualMemory& instance();

  // Errors are CUDA_ERROR_INVALID_VALUE where the arguments do not fit what is there, else the executor's.
  [[nodiscard]] CUresult reserve(std::uint64_t size_bytes, std::uint64_t alignment, std::uint64_t wanted, std::uint64_t& address);
  [[nodiscard]] CUresult free_range(std::uint64_t address, std::uint64_t size_bytes);
  // What cuMemCreate may ask for.
  struct Wishes {
    bool is_exportable = false;
    std::uint32_t compression = CU_MEM_ALLOCATION_COMP_NONE;  // CUmemAllocationCompType; the driver may give less
  };
  // Of memory that is to be. Numbers do not come back: a stale handle stays one.
  [[nodiscard]] proto::MemoryId new_id();
  [[nodiscard]] CUresult create(std::uint64_t size_bytes, const Wishes& wishes, CUmemGenericAllocationHandle& handle);
  [[nodiscard]] CUresult release(CUmemGenericAllocationHandle handle);
  [[nodiscard]] CUresult map(std::uint64_t address, std::uint64_t size_bytes, CUmemGenericAllocationHandle handle);
  // Of whole mappings that fill the range, here and below.
  [[nodiscard]] CUresult unmap(std::uint64_t address, std::uint64_t size_bytes);
  [[nodiscard]] CUresult set_access(std::uint64_t address, std::uint64_t size_bytes, bool is_accessible);
  // The same for the device of another session of the process (PeerPieces), where this one's own access says nothing.
  [[nodiscard]] CUresult set_peer_access(std::uint64_t address, std::uint64_t size_bytes, std::uint32_t by, bool is_accessible);

  // Memory of another process, by its name; `is_own`: it is of this one.
  [[nodiscard]] CUresult open(const proto::MemoryName& name, CUmemGenericAllocationHandle& handle, bool& is_own);
  // A further reference to what is mapped at `address`.
  [[nodiscard]] std::optional<CUmemGenericAllocationHandle> retain(std::uint64_t address);
  struct Properties {
    std::uint64_t size_bytes = 0;
    bool is_exportable = false;
    bool may_be_compressed = false;  // if so, ask
    std::uint32_t device = 0;        // 1 + the broker's number of the device that has it; 0: the session's
  };
  [[nodiscard]] std::optional<Properties> properties(CUmemGenericAllocationHandle handle) const;
  // What the driver has given it (CUmemAllocationCompType).
  [[nodiscard]] static CUresult compression(CUmemGenericAllocationHandle handle, std::uint32_t& compression);
  struct Found {
    AddressRange range;  // of the mapping
    std::uint64_t buffer_id = 0;
    bool is_accessible = false;
    bool is_exportable = false;
    std::uint32_t device = 0;      // as of Properties
    std::uint32_t reached_by = 0;  // of the process's other sessions, a bit each
  };
  // The mapping that holds `address`.
  [[nodiscard]] std::optional<Found> find(std::uint64_t address) const;

 private:
  struct Range {
    std::uint64_t size_bytes = 0;
    RecipeBook::Key recipe = 0;
  };
  struct Memory {
    std::uint64_t size_bytes = 0;
    bool is_exportable = false;
    bool may_be_compressed = false;
    std::uint64_t references = 1;  // the application's; without any, it goes with its last mapping
    std::uint64_t mappings = 0;
    std::uint64_t buffer_id = 0;
    std::uint32_t device = 0;  // as of Properties
  };
  struct Mapping {
    std::uint64_t size_bytes = 0;
    std::uint64_t memory = 0;
    bool is_accessible = false;
    RecipeBook::Key recipe = 0;
    std::uint32_t reached_by = 0;
  };
  using Mappings = std::map<std::uint64_t, Mapping>;

  [[nodiscard]] CUresult ask_for_range(std::uint64_t size_bytes, std::uint64_t alignment, std::uint64_t wanted, std::uint64_t& address,
                                       RecipeBook::Key& recipe);
  [[nodiscard]] bool is_reserved(std::uint64_t address, std::uint64_t size_bytes) const REQUIRES(order_mutex_);
  [[nodiscard]] bool is_free(std::uint64_t address, std::uint64_t size_bytes) const REQUIRES(order_mutex_);
  // Whether mappings fill the range, none of them in part.
  [[nodiscard]] bool is_filled(std::uint64_t address, std::uint64_t size_bytes) const REQUIRES(order_mutex_);
  [[nodiscard]] CUresult note_peer(Mappings::iterator mapping, std::uint32_t by, bool is_accessible) REQUIRES(order_mutex_);
  [[nodiscard]] CUresult end_mapping(std::uint64_t address) REQUIRES(order_mutex_);
  [[nodiscard]] CUresult end_memory(std::map<std::uint64_t, Memory>::iterator memory) REQUIRES(order_mutex_, mutex_);
  // To read, in an operation: the tables are changed with both locks held.
  [[nodiscard]] std::map<std::uint64_t, Range>& ranges() REQUIRES(order_mutex_) {
    mutex_.assume_held();
    return ranges_;
  }
  [[nodiscard]] std::map<std::uint64_t, Memory>& memories() REQUIRES(order_mutex_) {
    mutex_.assume_held();
    return memories_;
  }
  [[nodiscard]] Mappings& mappings() REQUIRES(order_mutex_) {
    mutex_.assume_held();
    return mappings_;
  }

  Mutex order_mutex_;                                            // operations; taken before mutex_
  mutable Mutex mutex_;                                          // the tables; changed with both held
  std::map<std::uint64_t, Range> ranges_ GUARDED_BY(mutex_);     // by address
  std::map<std::uint64_t, Memory> memories_ GUARDED_BY(mutex_);  // by id
  Mappings mappings_ GUARDED_BY(mutex_);                         // by address
  std::atomic<std::uint32_t> last_memory_{0};
  std::atomic<bool> has_been_used_{false};  // others pay one load for each pointer
};

}  // namespace mpsshim::interposer::forward
