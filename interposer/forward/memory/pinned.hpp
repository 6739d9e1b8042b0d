// SPDX-License-Identifier: Apache-2.0
// Pinned memory (cuMemHostAlloc): a segment of shared memory, mapped in this process and in the executor at the same address of the pinned
// lease and registered there. So copies from and to it need no staging, and device pointer and host pointer are one. Pages are populated
// here: they are charged to this process. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/memory/device_heap.hpp"
#include "interposer/forward/memory/mappings.hpp"
#include "proto/client_requests.hpp"
#include "proto/mutex.hpp"
#include "proto/segment.hpp"

namespace mpsshim::interposer::forward {

class PinnedMemory {
 public:
  [[nodiscard]] static PinnedMemory& instance();

  [[nodiscard]] CUresult allocate(std::uint64_t bytes, std::uint32_t flags, CUcontext context, void*& pointer);
  // cuMemAllocManaged: the same memory under another name.
  [[nodiscard]] CUresult allocate_managed(std::uint64_t bytes, CUcontext context, void*& pointer);
  // The same for variables of modules, which lie in it at `variables`, relative to its start and in order. They are found one by one.
  [[nodiscard]] CUresult allocate_variables(std::uint64_t bytes, std::vector<AddressRange> variables, void*& pointer);
  // For RegisteredMemory: its own table says what the memory is.
  [[nodiscard]] CUresult allocate_alias(std::uint64_t bytes, std::uint32_t flags, CUcontext context, void*& pointer);
  // A segment of events (proto/shared_events.hpp): an own one, or one that `opens` names. `segment` is its id.
  [[nodiscard]] CUresult allocate_events(const proto::MemoryName* opens, void*& pointer, std::uint64_t& segment);
  // The segment that is an alias; 0: there is no such alias.
  [[nodiscard]] std::uint64_t segment_of(std::uint64_t alias) const;
  // What an alias lies in; nullopt if there is no such alias.
  [[nodiscard]] std::optional<FileIdentity> file_of(std::uint64_t alias) const;
  // Maps this part of an alias's content at `to`, for this process alone. False: its file cannot be had any more.
  [[nodiscard]] bool map_private(std::uint64_t alias, std::uint64_t offset_bytes, std::uint64_t bytes, void* to);
  // What of it nobody else has a copy of is blank from now on.
  void blank(std::uint64_t alias, std::uint64_t offset_bytes, std::uint64_t bytes);
  // The same for everybody: what the executor writes is seen there, and the reverse. Once: the file is closed then.
  [[nodiscard]] bool map_shared(std::uint64_t alias, void* to);
  // CUDA_ERROR_INVALID_VALUE if `pointer` is no allocation's base. Waits for this process's own work.
  [[nodiscard]] CUresult free(void* pointer);
  // The same without waiting: work under way may use it to its end, in the executor; nobody here does.
  [[nodiscard]] CUresult release(void* pointer);
  void finish_elsewhere(std::uint64_t address);  // waits for the work of other sessions that have the allocation open
  struct Found {
    AddressRange range;
    std::uint32_t flags = 0;
    CUcontext context = nullptr;
    bool is_managed = false;
    bool is_variable = false;  // a module's: managed, and not to be freed
    bool is_alias = false;
    std::uint64_t buffer_id = 0;
  };
  // Another session's that the acting one's device reaches.
  [[nodiscard]] static bool is_open_here(std::uint64_t address, std::uint64_t bytes);
  // The allocation or variable that holds `address`.
  [[nodiscard]] std::optional<Found> find(std::uint64_t address) const;
  void free_all_of(CUcontext context);

  // All devices of the process reach what a program pins or has managed, in whichever session it was made (pinned_elsewhere.cpp). For the acting
  // session, once it is attached: what others have made is mapped in its executor as well, and from now on so is what they make.
  [[nodiscard]] static CUresult join();

 private:
  struct Allocation {
    std::uint64_t size_bytes = 0;    // as asked for
    std::uint64_t mapped_bytes = 0;  // whole pages
    std::uint64_t segment = 0;
    std::uint32_t flags = 0;
    CUcontext context = nullptr;
    bool is_managed = false;
    bool is_alias = false;
    proto::SegmentPurpose purpose = proto::SegmentPurpose::pinned;
    std::optional<proto::MemoryName> opens;  // another session's segment
    std::uint64_t buffer_id = 0;
    std::vector<AddressRange> variables;  // relative to its start; empty: not of modules
    // Of an alias. The host program may close descriptors that it does not know: the file is known again by these.
    std::shared_ptr<proto::FileDescriptor> file;
    FileIdentity identity;
    std::map<std::uint32_t, std::uint64_t> elsewhere;  // the segment's number in each other session that has it mapped

    // Not what this library has for itself.
    [[nodiscard]] bool is_programs() const { return context != nullptr || is_managed; }
  };

  [[nodiscard]] CUresult allocate(Allocation allocation, void*& pointer);
  [[nodiscard]] CUresult choose_address(std::uint64_t mapped_bytes, std::uint64_t& address);
  [[nodiscard]] CUresult map(std::uint64_t address, std::uint32_t flags, Allocation& allocation);
  // Of an alias, its file if that is still behind its descriptor; or -1.
  [[nodiscard]] int descriptor_of(std::uint64_t alias) REQUIRES(mutex_);
  void give_back(std::uint64_t address, std::uint64_t mapped_bytes);
  // In the other sessions that are attached.
  [[nodiscard]] CUresult open_elsewhere(std::uint64_t address);
  [[nodiscard]] CUresult open_in(std::uint32_t other, std::uint64_t address);
  static void close_elsewhere(const Allocation& allocation);
  [[nodiscard]] std::vector<std::uint64_t> addresses() const;

  // While a segment is opened or closed in other sessions: one at a time in the process, before mutex_ of any.
  [[nodiscard]] static Mutex& opening();

  mutable Mutex mutex_;
  DeviceHeap addresses_ GUARDED_BY(mutex_);  // of the pinned lease; its one chunk
  // Freed here, but perhaps still mapped in the executor (it waits for a quiet window): used again only when the lease has nothing else.
  std::vector<std::uint64_t> resting_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, Allocation> allocations_ GUARDED_BY(mutex_);
  std::atomic<bool> has_been_used_{false};
};

}  // namespace mpsshim::interposer::forward
