// SPDX-License-Identifier: Apache-2.0
// The host memory of one session: segments that its client shares, mapped here and registered with the driver.
//
// Thread safe (one short lock): helpers map, window jobs release, workers ask. Addresses, offsets and sizes in questions come from the client
// and are not trusted; nothing overflows.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>

#include "broker/driver/driver.hpp"
#include "broker/executor/base/address_ranges.hpp"
#include "broker/executor/base/turn_budget.hpp"
#include "proto/client_requests.hpp"
#include "proto/mutex.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

class ControlLink;

class SegmentMap {
 public:
  SegmentMap(const Driver& driver, ControlLink& control, std::uint64_t session, proto::Lease pinned_lease);
  SegmentMap(const SegmentMap&) = delete;

  struct Place {
    proto::SegmentPurpose purpose{};
    std::uint64_t address = 0;
    bool is_peers = false;  // of another session of the process, in that one's range, as the control process has found
  };
  // Maps and registers a segment. `staging`: offset-addressed, at most one. `pinned`: at its address, inside the pinned lease but for peers', and
  // where nothing is mapped yet.
  [[nodiscard]] CUresult map(std::uint64_t segment, const Place& place, unsigned flags, const proto::FileDescriptor& file,
                             std::uint64_t& device_address);
  // The device address of a segment that is mapped.
  [[nodiscard]] std::optional<CUdeviceptr> find(std::uint64_t segment) const;
  // forget: no new use; release (in a quiet window): cuMemHostUnregister; unmap (outside, where it holds up nobody): the pages.
  [[nodiscard]] bool forget(std::uint64_t segment);
  void release(std::uint64_t segment);
  void unmap(std::uint64_t segment);
  // The same when the session has ended, in as many windows as it takes (false: there are more), and behind the last.
  [[nodiscard]] bool release_some(TurnBudget& budget);
  void unmap_all();

  // The pages of a pinned segment at a second address as well, in place of a chunk's device memory (MemoryMap). claim: from then to disclaim() the
  // segment stays; false: there is none of at most that size, or it is claimed. lay: maps and registers them there. release_laid (in a quiet window):
  // cuMemHostUnregister; take_up (outside): the pages, whose addresses are kept free.
  [[nodiscard]] bool claim(std::uint64_t segment, std::uint64_t most_bytes, std::uint64_t& size_bytes);
  void disclaim(std::uint64_t segment);
  [[nodiscard]] CUresult lay(std::uint64_t segment, std::uint64_t address);
  void release_laid(std::uint64_t segment);
  void take_up(std::uint64_t segment);
  [[nodiscard]] bool has_laid() const;

  [[nodiscard]] bool is_leased(std::uint64_t address, std::uint64_t size_bytes) const;
  [[nodiscard]] std::uint64_t losses() const { return losses_; }  // counts forget()
  [[nodiscard]] bool owns_pinned(std::uint64_t address, std::uint64_t size_bytes) const;
  // Device address of [offset, offset + size) in the staging segment.
  [[nodiscard]] std::optional<CUdeviceptr> staging(std::uint64_t offset, std::uint64_t size_bytes) const;

 private:
  struct Segment {
    proto::Mapping mapping;
    proto::SegmentPurpose purpose{};
    CUdeviceptr device_address = 0;
    bool forgotten = false;
    bool is_registered = true;
    bool is_claimed = false;
    std::byte* laid = nullptr;  // the second place, as large
    bool is_laid_registered = false;
  };

  static void take_up(Segment& owner);

  const Driver& driver_;
  ControlLink& control_;
  const std::uint64_t session_;
  const proto::Lease pinned_lease_;

  mutable Mutex mutex_;
  std::map<std::uint64_t, Segment> segments_ GUARDED_BY(mutex_);  // by id
  AddressRanges pinned_ GUARDED_BY(mutex_);
  const Segment* staging_ = nullptr;
  std::atomic<std::uint64_t> losses_{0};
};

}  // namespace mpsshim::broker
