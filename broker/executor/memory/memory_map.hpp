// SPDX-License-Identifier: Apache-2.0
// The memory of one session: device chunks in its lease, host segments, its modules' globals. Answers whether an address range belongs to the
// session, which every API call that takes a pointer asks before the driver sees it.
//
// Thread safe (one short lock): workers check and create chunks, helpers unmap them.
// Addresses and sizes in questions come from the client and are not trusted; nothing overflows.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "broker/driver/driver.hpp"
#include "broker/executor/base/address_ranges.hpp"
#include "broker/executor/base/address_set.hpp"
#include "broker/executor/link/device_grant.hpp"
#include "broker/executor/memory/segment_map.hpp"
#include "proto/cond_var.hpp"
#include "proto/handshake.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class ApplicationMemory;
class BulkLane;
class ControlLink;
class ExternalMemory;

class MemoryMap {
 public:
  // `all_chunks` counts those of all sessions; `bulk_lane` is theirs as well. `user_limit_bytes`: of device memory, of its user; 0: none.
  MemoryMap(const Driver& driver, ControlLink& control, CUdevice device, std::uint64_t session, proto::Lease device_lease, proto::Lease pinned_lease,
            std::atomic<std::uint64_t>& all_chunks, BulkLane& bulk_lane, std::uint64_t user_limit_bytes);
  MemoryMap(const MemoryMap&) = delete;
  ~MemoryMap();

  // Reserves the device lease in the driver's address space.
  [[nodiscard]] CUresult open();
  // Further device ranges, which chunks may lie in. add: without effect where the session has it. remove: false, if it has not, or chunks lie there.
  // `is_peers`: one of another session of the same client, on another device. All of it is one of the ranges that the client maps memory in (memory
  // of that session, by its names), and no chunk is put there.
  [[nodiscard]] CUresult add_lease(const proto::Lease& lease, bool is_peers = false);
  [[nodiscard]] std::optional<std::uint64_t> find_lease(std::uint64_t address) const;  // its size
  void close_lease(std::uint64_t address);                                             // no further chunk in it
  [[nodiscard]] bool remove_lease(std::uint64_t address);
  // Maps a chunk of an earlier executor again, at its address.
  [[nodiscard]] CUresult restore_chunk(std::uint64_t address, std::uint64_t size_bytes, int handle_fd);

  struct Chunk {
    std::uint64_t address = 0;
    std::uint64_t size_bytes = 0;
  };
  // What create_chunk() answers where the device has memory perhaps, but no lease has room: the client asks for a further one.
  static constexpr CUresult kNoRoomInLeases = CUDA_ERROR_MAP_FAILED;
  // Where there is a limit this, and whatever else makes device memory, is for a helper.
  [[nodiscard]] const DeviceLimit& limit() const { return limit_; }
  void change_limit(std::uint64_t limit_bytes) { limit_.change(limit_bytes); }  // for what is made from now on
  [[nodiscard]] CUresult create_chunk(std::uint64_t size_bytes, Chunk& chunk);
  // What is given up (a chunk, a range, a mapping) is numbered. Work under way may use it, so it is ended later, perhaps by another thread, which
  // says up to which number that work has ended: the same address may be in use anew by then, and given up again.
  [[nodiscard]] std::uint64_t last_given_up() const { return last_given_up_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t give_up() { return last_given_up_.fetch_add(1, std::memory_order_relaxed) + 1; }
  // Its addresses are refused from now on. False: there is no such chunk.
  [[nodiscard]] bool forget_chunk(std::uint64_t address);
  void release_chunk(std::uint64_t address, std::uint64_t up_to);
  // Releases every forgotten chunk and waits for those that other threads release. False: there were none.
  bool release_leaving(std::uint64_t up_to);
  [[nodiscard]] bool is_releasing() const;

  // A chunk's addresses mean the pages of a pinned segment, from the first one, or its device memory again, which keeps its contents meanwhile. Work
  // under way may use what is there: leave_*() refuses the addresses from then on, and the rest comes once that work has ended, release_laid() in a
  // quiet window. What fails leaves the device's memory there.
  // 0: the device's memory; nullopt: there is no such chunk, or it is on its way.
  [[nodiscard]] std::optional<std::uint64_t> laid_segment(std::uint64_t chunk) const;
  [[nodiscard]] bool leave_device(std::uint64_t chunk, std::uint64_t segment);
  [[nodiscard]] CUresult settle_on_host(std::uint64_t chunk);
  [[nodiscard]] bool leave_host(std::uint64_t chunk);
  void stay_on_host(std::uint64_t chunk);  // after all
  void release_laid(std::uint64_t chunk);
  [[nodiscard]] CUresult settle_on_device(std::uint64_t chunk);

  // Address ranges that the client maps memory in by itself (ApplicationMemory): no chunk is put there. `wanted`: 0, or where it is to be.
  [[nodiscard]] CUresult reserve_range(std::uint64_t size_bytes, std::uint64_t alignment, std::uint64_t wanted, std::uint64_t& address);
  [[nodiscard]] bool is_reserved(std::uint64_t address, std::uint64_t size_bytes) const;
  // Nothing more is mapped there (false: something is, or it is no range). release_ranges() ends such ranges within the given addresses.
  [[nodiscard]] bool leave_range(std::uint64_t address, std::uint64_t size_bytes);
  void release_ranges(std::uint64_t address, std::uint64_t size_bytes, std::uint64_t up_to);
  // What is mapped there and may be used.
  void add_region(std::uint64_t address, std::uint64_t size_bytes);
  void remove_region(std::uint64_t address, std::uint64_t size_bytes);  // without effect where it is not
  // A piece of memory costs descriptors. False: the session has as many as it may have.
  [[nodiscard]] bool claim_descriptor();
  void give_back_descriptor();
  [[nodiscard]] BulkLane& bulk_lane() { return bulk_lane_; }
  [[nodiscard]] ApplicationMemory& application() { return *application_; }
  [[nodiscard]] const ApplicationMemory& application() const { return *application_; }
  [[nodiscard]] ExternalMemory& external() { return *external_; }
  [[nodiscard]] const ExternalMemory& external() const { return *external_; }
  [[nodiscard]] SegmentMap& segments() { return segments_; }
  [[nodiscard]] const SegmentMap& segments() const { return segments_; }

  // When the session has ended: all device memory of its own, and its addresses, but for those where segments are laid. Waits for no kernel. Segments
  // and memory of other interfaces have ends of their own, in windows; release_addresses() comes behind theirs.
  void release_chunks();
  void release_addresses();

  // Variables of its modules: the session's own from add_global() to remove_global(), which comes with the module's unload. Afterwards the copy may
  // be another client's.
  void add_global(std::uint64_t address, std::uint64_t size_bytes);
  void remove_global(std::uint64_t address);

  // Counts whatever has ceased to be the session's own. Who has asked about a range need not ask again before it changes.
  [[nodiscard]] std::uint64_t losses() const;

  // Wholly in chunks, in a global, or in a buffer of external memory.
  [[nodiscard]] bool owns_device(std::uint64_t address, std::uint64_t size_bytes) const;
  [[nodiscard]] bool is_leased(std::uint64_t address, std::uint64_t size_bytes) const;  // nobody else's, whatever is there
  [[nodiscard]] bool owns_pinned(std::uint64_t address, std::uint64_t size_bytes) const { return segments_.owns_pinned(address, size_bytes); }

 private:
  struct Mapped {
    std::uint64_t size_bytes = 0;
    CUmemGenericAllocationHandle handle = 0;
    std::uint64_t given_up = 0;
    std::uint64_t segment = 0;  // whose pages are there; 0: the device's
    std::uint64_t segment_bytes = 0;
    bool is_moving = false;
  };

  [[nodiscard]] Mapped& laid_chunk(std::uint64_t chunk) REQUIRES(mutex_);
  void stay_on_device(std::uint64_t chunk, CUresult mapped);
  [[nodiscard]] CUresult reserve_lease(const proto::Lease& lease, proto::Lease& reserved);
  [[nodiscard]] bool lies_in_own(std::uint64_t address, std::uint64_t size_bytes) const;
  [[nodiscard]] bool lies_in_laid(std::uint64_t address, std::uint64_t size_bytes) const REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t take_room(std::uint64_t size_bytes, std::uint64_t alignment) REQUIRES(mutex_);
  [[nodiscard]] bool take_room_at(std::uint64_t address, std::uint64_t size_bytes) REQUIRES(mutex_);
  void give_room_back(std::uint64_t address, std::uint64_t size_bytes) REQUIRES(mutex_);
  [[nodiscard]] bool has_descriptors() const REQUIRES(mutex_);
  [[nodiscard]] CUresult refuse_chunk() REQUIRES(mutex_);
  [[nodiscard]] CUresult make_chunk(std::uint64_t address, std::uint64_t size_bytes, CUmemGenericAllocationHandle& handle,
                                    proto::FileDescriptor& exported);
  [[nodiscard]] CUresult map_handle(std::uint64_t address, std::uint64_t size_bytes, CUmemGenericAllocationHandle handle);
  void unmap_chunk(std::uint64_t address, const Mapped& chunk);

  const Driver& driver_;
  ControlLink& control_;
  const CUdevice device_;
  const std::uint64_t session_;
  const proto::Lease device_lease_;
  DeviceLimit limit_;
  std::atomic<std::uint64_t>& all_chunks_;
  BulkLane& bulk_lane_;
  std::uint64_t granularity_ = 0;
  std::atomic<std::uint64_t> last_given_up_{0};
  std::atomic<std::uint64_t> losses_{0};

  mutable Mutex mutex_;
  struct Leased {
    std::uint64_t size_bytes = 0;
    proto::Lease reserved;  // what the driver keeps free for it
    AddressSet room;        // where nothing is: what neither taken_ nor ranges_ has
    bool is_closed = false;
    bool is_peers = false;  // another session's: closed from the beginning, and one of ranges_
  };
  std::map<std::uint64_t, Leased> leases_ GUARDED_BY(mutex_);   // device ranges, by address
  std::map<std::uint64_t, Leased> ending_leases_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, Mapped> chunks_ GUARDED_BY(mutex_);   // by address; usable
  std::map<std::uint64_t, Mapped> leaving_ GUARDED_BY(mutex_);  // forgotten, still mapped
  AddressRanges taken_ GUARDED_BY(mutex_);                      // all addresses in use: those two, chunks in the making and being unmapped
  AddressRanges ranges_ GUARDED_BY(mutex_);                     // the client's own
  std::map<std::uint64_t, std::uint64_t> leaving_ranges_ GUARDED_BY(mutex_);  // by address: when it was given up
  AddressSet usable_ GUARDED_BY(mutex_);                                      // chunks_, and what is mapped in ranges_: neighbours are one piece
  std::uint64_t application_pieces_ GUARDED_BY(mutex_) = 0;
  bool has_been_refused_ GUARDED_BY(mutex_) = false;
  unsigned releasing_ GUARDED_BY(mutex_) = 0;  // chunks being unmapped just now
  CondVar released_;
  AddressRanges globals_ GUARDED_BY(mutex_);
  SegmentMap segments_;
  const std::unique_ptr<ApplicationMemory> application_;
  const std::unique_ptr<ExternalMemory> external_;
};

}  // namespace mpsshim::broker
