// SPDX-License-Identifier: Apache-2.0
#include "broker/control/sessions/session_memory.hpp"

#include <algorithm>

#include "proto/channel.hpp"
#include "proto/shared_events.hpp"

namespace mpsshim::broker::control {

namespace {

const char* refusal(const proto::SegmentCreate& request, const proto::Lease& lease) {
  if (request.size_bytes == 0 || request.size_bytes % proto::kPageBytes != 0) return "its size is not a number of pages";
  switch (request.purpose) {
    case proto::SegmentPurpose::staging:
      if (request.size_bytes > SegmentStore::kMaxStagingBytes) return "a staging segment is at most 1 GiB";
      return request.address == 0 ? nullptr : "a staging segment has no address of its own";
    case proto::SegmentPurpose::events:
      if (request.size_bytes != proto::kSharedEventBytes) return "a segment of events has another size";
      [[fallthrough]];
    case proto::SegmentPurpose::pinned:
      if (request.address % proto::kPageBytes != 0) return "its address is not that of a page";
      if (request.address < lease.address || request.size_bytes > lease.size_bytes ||
          request.address - lease.address > lease.size_bytes - request.size_bytes) {
        return "it does not lie in the session's range for pinned memory";
      }
      return nullptr;
  }
  return "its purpose is unknown";
}

}  // namespace

CUresult SegmentStore::check(const proto::SegmentCreate& request, const proto::Lease& pinned_lease, const char*& why) const {
  why = refusal(request, pinned_lease);
  if (why != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (proto::has_own_address(request.purpose) && overlaps(request.address, request.size_bytes)) {
    why = "it overlaps another segment of the session";
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (segments_.size() < kMaxSegments) return CUDA_SUCCESS;
  why = "the session has as many segments as it may have";
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult SegmentStore::create(std::uint64_t id, const proto::SegmentCreate& request, const proto::Lease& pinned_lease, const char*& why) {
  if (const CUresult status = check(request, pinned_lease, why); status != CUDA_SUCCESS) return status;
  const char* name = request.purpose == proto::SegmentPurpose::staging ? "mpsshim-staging" : "mpsshim-pinned";
  Segment segment{request.purpose, request.address, request.size_bytes, proto::create_memory_file(name, request.size_bytes), false};
  if (!segment.file.valid() || !proto::seal(segment.file, proto::Seal::size)) {
    why = "the system gives no memory file (see the broker's limit of open files and its memory limit)";
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  adopt(id, std::move(segment));
  return CUDA_SUCCESS;
}

CUresult SegmentStore::open(std::uint64_t id, const proto::SegmentCreate& request, const Segment& shared, const proto::Lease& pinned_lease,
                            bool is_peers, const char*& why) {
  if (const CUresult status = check(request, pinned_lease, why); status != CUDA_SUCCESS) return status;
  Segment segment{request.purpose, request.address, request.size_bytes, shared.file.duplicate(), is_peers};
  if (!segment.file.valid()) {
    why = "the system gives no descriptor (see the broker's limit of open files)";
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  adopt(id, std::move(segment));
  return CUDA_SUCCESS;
}

bool SegmentStore::release(std::uint64_t id) {
  const auto found = segments_.find(id);
  if (found == segments_.end()) return false;
  if (!found->second.is_peers) total_bytes_ -= found->second.size_bytes;
  segments_.erase(found);
  return true;
}

void SegmentStore::clear() {
  segments_.clear();
  total_bytes_ = 0;
}

const Segment* SegmentStore::find(std::uint64_t id) const {
  const auto found = segments_.find(id);
  return found == segments_.end() ? nullptr : &found->second;
}

bool SegmentStore::overlaps(std::uint64_t address, std::uint64_t size_bytes) const {
  return std::ranges::any_of(segments_, [&](const auto& entry) {
    const Segment& other = entry.second;
    return proto::has_own_address(other.purpose) && address < other.address + other.size_bytes && other.address < address + size_bytes;
  });
}

std::uint64_t ChunkStore::total_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [address, chunk] : chunks_) total += chunk.size_bytes;
  return total;
}

}  // namespace mpsshim::broker::control
