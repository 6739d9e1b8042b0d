// SPDX-License-Identifier: Apache-2.0
// The memory of one session that outlives an executor: segments (host memory shared with the client) and chunks (device memory, as the
// exported handles of cuMemCreate). The control process holds one descriptor of each, so that a new executor can be given them again;
// closing the descriptor frees the memory once nobody else has it.
// Owned by its ClientSession. Requests for segments come from the client and are checked here; chunks are reported by the executor.
#pragma once

#include <cstdint>
#include <map>

#include <cuda.h>

#include "broker/control/sessions/device_quota.hpp"
#include "proto/client_requests.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker::control {

struct Segment {
  proto::SegmentPurpose purpose{};
  std::uint64_t address = 0;  // pinned: in client and executor; staging: 0
  std::uint64_t size_bytes = 0;
  proto::FileDescriptor file;
  bool is_peers = false;  // pinned memory of another session of the process, in that one's range: it counts as that one's
};

class SegmentStore {
 public:
  static constexpr std::size_t kMaxSegments = 4096;  // of one session
  static constexpr std::uint64_t kMaxStagingBytes = 1ull << 30;

  // Makes the memory file with its size sealed. On failure `why` says what was wrong with the request.
  [[nodiscard]] CUresult create(std::uint64_t id, const proto::SegmentCreate& request, const proto::Lease& pinned_lease, const char*& why);
  // The same of another session's segment, within the range that is named.
  [[nodiscard]] CUresult open(std::uint64_t id, const proto::SegmentCreate& request, const Segment& shared, const proto::Lease& pinned_lease,
                              bool is_peers, const char*& why);
  [[nodiscard]] const Segment* find(std::uint64_t id) const;
  bool release(std::uint64_t id);
  void clear();
  [[nodiscard]] const std::map<std::uint64_t, Segment>& all() const { return segments_; }
  void adopt(std::uint64_t id, Segment segment) {
    if (!segment.is_peers) total_bytes_ += segment.size_bytes;
    segments_.insert_or_assign(id, std::move(segment));
  }
  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }

 private:
  [[nodiscard]] CUresult check(const proto::SegmentCreate& request, const proto::Lease& pinned_lease, const char*& why) const;
  [[nodiscard]] bool overlaps(std::uint64_t address, std::uint64_t size_bytes) const;
  std::map<std::uint64_t, Segment> segments_;
  std::uint64_t total_bytes_ = 0;
};

struct Chunk {
  std::uint64_t size_bytes = 0;
  proto::FileDescriptor handle;
  DeviceChargeRef charge;
};

class ChunkStore {
 public:
  void add(std::uint64_t address, std::uint64_t size_bytes, proto::FileDescriptor handle, DeviceChargeRef charge) {
    chunks_.insert_or_assign(address, Chunk{size_bytes, std::move(handle), std::move(charge)});
  }
  bool release(std::uint64_t address) { return chunks_.erase(address) != 0; }
  void clear() { chunks_.clear(); }
  [[nodiscard]] const std::map<std::uint64_t, Chunk>& all() const { return chunks_; }
  [[nodiscard]] std::uint64_t total_bytes() const;

 private:
  std::map<std::uint64_t, Chunk> chunks_;  // by address
};

}  // namespace mpsshim::broker::control
