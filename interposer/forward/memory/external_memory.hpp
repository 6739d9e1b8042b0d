// SPDX-License-Identifier: Apache-2.0
// Memory of other interfaces (Driver API manual, "External Resource Interoperability"): what this process has imported by file descriptors, and the
// buffers mapped of it. The executor's driver chooses where a buffer lies, outside the leased ranges; those addresses are then kept free in this
// process, so that no host memory ever has them.
//
// Any thread. Operations follow each other under one lock, which is held while the executor is asked; looking up an address takes another, short
// one. What the memory holds is not this session's to keep: after an executor was replaced a process that has some is told so.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/arrays/arrays.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/memory/address_range.hpp"
#include "interposer/forward/memory/allocation_owner.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/handle_table.hpp"
#include "proto/mutex.hpp"
#include "proto/segment.hpp"

namespace mpsshim::interposer::forward {

class ExternalMemories {
 public:
  [[nodiscard]] static ExternalMemories& instance();

  struct Source {
    int fd = -1;
    std::uint32_t handle_type = 0;  // CUexternalMemoryHandleType, of a descriptor
    std::uint64_t size_bytes = 0;
    std::uint32_t flags = 0;
  };
  // With CUDA_SUCCESS the application's descriptor is closed. CUDA_ERROR_INVALID_VALUE: it is of another kind, or has less behind it.
  [[nodiscard]] CUresult import(const Source& source, CUcontext context, CUexternalMemory& handle);
  [[nodiscard]] CUresult map(CUexternalMemory handle, std::uint64_t offset, std::uint64_t size_bytes, CUcontext context, std::uint64_t& address);
  [[nodiscard]] CUresult map_array(CUexternalMemory handle, const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC& description, CUcontext context,
                                   Array*& array);
  // What is mapped of it stays until it is freed.
  [[nodiscard]] CUresult destroy(CUexternalMemory handle);
  // Of a buffer, once nothing uses it.
  [[nodiscard]] CUresult free(std::uint64_t address);
  void end_all_of(CUcontext context);

  struct Found {
    AddressRange range;  // of the buffer
    AllocationOwner owner;
  };
  // The buffer that holds `address`.
  [[nodiscard]] std::optional<Found> find(std::uint64_t address) const;

 private:
  struct Memory {
    proto::ExternalMemoryId id;
    std::uint64_t size_bytes = 0;
    CUcontext context = nullptr;
    RecipeBook::Key recipe = 0;
  };
  struct Buffer {
    std::uint64_t size_bytes = 0;
    AllocationOwner owner;
    RecipeBook::Key recipe = 0;
    proto::Reservation kept_free;  // empty: another buffer's reservation covers it
  };
  using Buffers = std::multimap<std::uint64_t, Buffer>;  // by address: the driver may give what overlaps the same one

  [[nodiscard]] Memory* resolve(CUexternalMemory handle) const;
  [[nodiscard]] static CUresult announce(const Source& source, int fd, proto::ExternalMemoryId id);
  [[nodiscard]] static CUresult import_announced(const Source& source, int fd, Memory& memory);
  [[nodiscard]] CUresult ask_for_buffer(const Memory& memory, std::uint64_t offset, std::uint64_t size_bytes, std::uint64_t& address,
                                        RecipeBook::Key& recipe);
  [[nodiscard]] bool keep_free(std::uint64_t address, Buffer& buffer) REQUIRES(order_mutex_);
  [[nodiscard]] Buffers::iterator overlapping(AddressRange range) REQUIRES(order_mutex_);
  // To read, in an operation.
  [[nodiscard]] Buffers& mapped_buffers() REQUIRES(order_mutex_) {
    mutex_.assume_held();  // changed with both held
    return buffers_;
  }
  [[nodiscard]] static CUresult end_buffer(std::uint64_t address, RecipeBook::Key recipe);

  Mutex order_mutex_;    // operations; taken before mutex_
  mutable Mutex mutex_;  // buffers_; changed with both held
  proto::HandleTable<proto::HandleKind::external_memory, Memory> memories_{ActingSession::index()};
  Buffers buffers_ GUARDED_BY(mutex_);
  std::atomic<bool> has_been_used_{false};  // others pay one load for each pointer
};

}  // namespace mpsshim::interposer::forward
