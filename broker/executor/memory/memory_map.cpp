// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/memory/memory_map.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include <sys/resource.h>
#include <unistd.h>

#include "broker/executor/base/bulk_calls.hpp"
#include "broker/executor/link/control_link.hpp"
#include "broker/executor/memory/application_memory.hpp"
#include "broker/executor/memory/external_memory.hpp"
#include "broker/log.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

namespace {

// The driver takes a wanted address for a reservation only at coarse steps (docs/experiments/2026-11-21-driver-facts.md). Rounding outwards stays
// inside the session's slot, because the guard gaps around a lease do.
constexpr std::uint64_t kReservationUnit = std::uint64_t{32} << 20;

// Each chunk costs this process and the control process descriptors (the CPU driver's memory is files too).
constexpr std::uint64_t kShareOfAllChunks = 4;  // of the limit of open files: what all sessions may have together
constexpr std::uint64_t kShareOfOneSession = 8;

std::uint64_t descriptor_limit() {
  static const std::uint64_t limit = [] {
    rlimit files{};
    return getrlimit(RLIMIT_NOFILE, &files) == 0 ? std::uint64_t{files.rlim_cur} : 1'024;
  }();
  return limit;
}

CUmemAllocationProp allocation_properties(CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

}  // namespace

MemoryMap::MemoryMap(const Driver& driver, ControlLink& control, CUdevice device, std::uint64_t session, proto::Lease device_lease,
                     proto::Lease pinned_lease, std::atomic<std::uint64_t>& all_chunks, BulkLane& bulk_lane, std::uint64_t user_limit_bytes)
    : driver_(driver),
      control_(control),
      device_(device),
      session_(session),
      device_lease_(device_lease),
      limit_(control, session, user_limit_bytes),
      all_chunks_(all_chunks),
      bulk_lane_(bulk_lane),
      segments_(driver, control, session, pinned_lease),
      application_(std::make_unique<ApplicationMemory>(driver, control, device, session, *this)),
      external_(std::make_unique<ExternalMemory>(driver, *this)) {}

MemoryMap::~MemoryMap() = default;

CUresult MemoryMap::open() {
  const CUmemAllocationProp properties = allocation_properties(device_);
  std::size_t granularity = 0;
  CUresult result = driver_->cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) return result;
  granularity_ = granularity;
  return add_lease(device_lease_);
}

CUresult MemoryMap::reserve_lease(const proto::Lease& lease, proto::Lease& kept_free) {
  const std::uint64_t begin = lease.address / kReservationUnit * kReservationUnit;
  const std::uint64_t end = (lease.address + lease.size_bytes + kReservationUnit - 1) / kReservationUnit * kReservationUnit;
  CUdeviceptr reserved = 0;
  const CUresult result = [&] {
    const proto::trace::Span span("driver", "cuMemAddressReserve", {"session", session_});
    return driver_->cuMemAddressReserve(AddressKey(), &reserved, end - begin, 0, begin, 0);
  }();
  if (result != CUDA_SUCCESS) return result;
  if (reserved != begin) {
    driver_->cuMemAddressFree(AddressKey(), reserved, end - begin);
    log_error("Session {}: the driver reserved device addresses at {:#x} instead of {:#x}", session_, reserved, begin);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  kept_free = {reserved, end - begin};
  return CUDA_SUCCESS;
}

CUresult MemoryMap::add_lease(const proto::Lease& lease, bool is_peers) {
  if (find_lease(lease.address)) return CUDA_SUCCESS;
  proto::Lease reserved;
  if (const CUresult result = reserve_lease(lease, reserved); result != CUDA_SUCCESS) return result;
  std::lock_guard lock(mutex_);
  Leased& added = leases_[lease.address];
  added.size_bytes = lease.size_bytes;
  added.reserved = reserved;
  if (is_peers) {
    added.is_closed = true;
    added.is_peers = true;
    ranges_.emplace(lease.address, lease.size_bytes);
  } else {
    added.room.add(lease.address, lease.size_bytes);
  }
  return CUDA_SUCCESS;
}

CUresult MemoryMap::map_handle(std::uint64_t address, std::uint64_t size_bytes, CUmemGenericAllocationHandle handle) {
  CUresult result = driver_->cuMemMap(AddressKey(), address, size_bytes, 0, handle, 0);
  if (result != CUDA_SUCCESS) return result;
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device_}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  result = driver_->cuMemSetAccess(AddressKey(), address, size_bytes, &access, 1);
  if (result != CUDA_SUCCESS) driver_->cuMemUnmap(AddressKey(), address, size_bytes);
  return result;
}

CUresult MemoryMap::restore_chunk(std::uint64_t address, std::uint64_t size_bytes, int handle_fd) {
  CUmemGenericAllocationHandle handle = 0;
  // The driver takes the file descriptor's number as a pointer value; it keeps no reference to the descriptor itself.
  CUresult result = driver_->cuMemImportFromShareableHandle(AddressKey(), &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(handle_fd)),
                                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS) return result;
  result = map_handle(address, size_bytes, handle);
  if (result != CUDA_SUCCESS) {
    driver_->cuMemRelease(handle);
    return result;
  }
  std::lock_guard lock(mutex_);
  (void)take_room_at(address, size_bytes);
  chunks_[address] = {size_bytes, handle};
  if (!usable_.contains(address, size_bytes)) usable_.add(address, size_bytes);
  if (taken_.insert_or_assign(address, size_bytes).second) ++all_chunks_;
  return CUDA_SUCCESS;
}

std::uint64_t MemoryMap::take_room(std::uint64_t size_bytes, std::uint64_t alignment) {
  for (auto& [begin, lease] : leases_) {
    const std::uint64_t found = lease.is_closed ? 0 : lease.room.find(size_bytes, alignment);
    if (found != 0 && lease.room.remove(found, size_bytes)) return found;
  }
  return 0;
}

bool MemoryMap::take_room_at(std::uint64_t address, std::uint64_t size_bytes) {
  const auto lease = entry_before(leases_, address);
  return lease != leases_.end() && !lease->second.is_closed && lease->second.room.remove(address, size_bytes);
}

void MemoryMap::give_room_back(std::uint64_t address, std::uint64_t size_bytes) {
  if (const auto lease = entry_before(leases_, address); lease != leases_.end()) lease->second.room.add(address, size_bytes);
}

CUresult MemoryMap::create_chunk(std::uint64_t size_bytes, Chunk& chunk) {
  if (size_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (size_bytes > UINT64_MAX - granularity_) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t rounded = (size_bytes + granularity_ - 1) / granularity_ * granularity_;
  std::uint64_t address = 0;
  {
    std::lock_guard lock(mutex_);
    if (!has_descriptors()) return refuse_chunk();
    address = take_room(rounded, granularity_);
    if (address == 0) return kNoRoomInLeases;
    taken_.emplace(address, rounded);
  }
  ++all_chunks_;
  // Without the lock: the driver takes its time with large chunks, and the session's other calls ask owns_device() meanwhile.
  CUmemGenericAllocationHandle handle = 0;
  proto::FileDescriptor exported;
  DeviceGrant grant;
  CUresult result = limit_.ask(rounded, grant);
  if (result == CUDA_SUCCESS) result = make_chunk(address, rounded, handle, exported);
  std::lock_guard lock(mutex_);
  if (result != CUDA_SUCCESS) {
    taken_.erase(address);
    give_room_back(address, rounded);
    --all_chunks_;
    return result;
  }
  chunks_[address] = {rounded, handle};
  usable_.add(address, rounded);
  // Before the client hears of it: the memory must outlive this process from then on.
  control_.send({message::ChunkCreated{.session = session_, .chunk = address, .grant = grant.spend(), .size_bytes = rounded},
                 {.handle = exported.get()}});
  chunk = {address, rounded};
  return CUDA_SUCCESS;
}

bool MemoryMap::has_descriptors() const {
  return taken_.size() + application_pieces_ < descriptor_limit() / kShareOfOneSession && all_chunks_ < descriptor_limit() / kShareOfAllChunks;
}

// Told once: a client may ask again and again.
CUresult MemoryMap::refuse_chunk() {
  if (!std::exchange(has_been_refused_, true)) {
    log_warning(
        "Session {}: has {} chunks of memory, all sessions {}, which is what a limit of {} open files allows; it gets no more. Raise the "
        "broker's limit (ulimit -n)",
        session_, taken_.size() + application_pieces_, all_chunks_.load(), descriptor_limit());
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult MemoryMap::make_chunk(std::uint64_t address, std::uint64_t size_bytes, CUmemGenericAllocationHandle& handle,
                               proto::FileDescriptor& exported) {
  const CUmemAllocationProp properties = allocation_properties(device_);
  CUresult result = driver_->cuMemCreate(&handle, size_bytes, &properties, 0);
  if (result != CUDA_SUCCESS) return result;
  int fd = -1;
  result = driver_->cuMemExportToShareableHandle(AddressKey(), &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  exported = proto::FileDescriptor(fd);
  if (result == CUDA_SUCCESS) result = map_handle(address, size_bytes, handle);
  if (result != CUDA_SUCCESS) driver_->cuMemRelease(handle);
  return result;
}

bool MemoryMap::forget_chunk(std::uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = chunks_.find(address);
  if (found == chunks_.end() || found->second.segment != 0 || found->second.is_moving) return false;
  auto node = chunks_.extract(found);
  node.mapped().given_up = give_up();
  usable_.remove(address, node.mapped().size_bytes);
  leaving_.insert(std::move(node));
  ++losses_;
  return true;
}

void MemoryMap::unmap_chunk(std::uint64_t address, const Mapped& chunk) {
  if (chunk.segment == 0) driver_->cuMemUnmap(AddressKey(), address, chunk.size_bytes);
  driver_->cuMemRelease(chunk.handle);
}

void MemoryMap::release_chunk(std::uint64_t address, std::uint64_t up_to) {
  std::map<std::uint64_t, Mapped>::node_type node;
  {
    std::lock_guard lock(mutex_);
    const auto found = leaving_.find(address);
    if (found == leaving_.end() || found->second.given_up > up_to) return;
    node = leaving_.extract(found);
    ++releasing_;
  }
  unmap_chunk(address, node.mapped());
  {
    // The control process hears of the release before the address can be another chunk's.
    std::lock_guard lock(mutex_);
    control_.send(message::ChunkReleased{.session = session_, .chunk = address});
    all_chunks_ -= taken_.erase(address);
    give_room_back(address, node.mapped().size_bytes);
    --releasing_;
  }
  released_.notify_all();
}

bool MemoryMap::release_leaving(std::uint64_t up_to) {
  std::vector<std::uint64_t> chunks;
  {
    std::unique_lock lock(mutex_);
    for (const auto& [address, chunk] : leaving_) {
      if (chunk.given_up <= up_to) chunks.push_back(address);
    }
    if (chunks.empty() && releasing_ == 0) return false;
  }
  {
    BulkCalls calls(bulk_lane_);
    for (const std::uint64_t address : chunks) {
      calls.before_call();
      release_chunk(address, up_to);
    }
  }
  std::unique_lock lock(mutex_);
  released_.wait(lock, [this]() REQUIRES(mutex_) { return releasing_ == 0; });  // those that other helpers are at
  return true;
}

bool MemoryMap::is_releasing() const {
  std::lock_guard lock(mutex_);
  return releasing_ != 0 || !leaving_.empty();
}

void MemoryMap::release_chunks() {
  application_->release_all();
  std::map<std::uint64_t, Mapped> ended;
  std::map<std::uint64_t, Leased> leases;
  {
    std::lock_guard lock(mutex_);
    ranges_.clear();
    leaving_ranges_.clear();
    usable_.clear();
    ended.swap(chunks_);
    ended.merge(leaving_);
    leases.swap(leases_);
  }
  BulkCalls calls(bulk_lane_);
  for (const auto& [address, chunk] : ended) {
    calls.before_call();
    unmap_chunk(address, chunk);
  }
  {
    std::lock_guard lock(mutex_);
    ending_leases_ = std::move(leases);
    all_chunks_ -= taken_.size();
    taken_.clear();
  }
  if (!segments_.has_laid()) release_addresses();
}

// The driver frees none that has registered memory in it.
void MemoryMap::release_addresses() {
  std::map<std::uint64_t, Leased> ended;
  {
    std::lock_guard lock(mutex_);
    ended.swap(ending_leases_);
  }
  for (const auto& [address, lease] : ended) driver_->cuMemAddressFree(AddressKey(), lease.reserved.address, lease.reserved.size_bytes);
}

void MemoryMap::add_global(std::uint64_t address, std::uint64_t size_bytes) {
  std::lock_guard lock(mutex_);
  globals_[address] = std::max(globals_[address], size_bytes);
}

bool MemoryMap::is_leased(std::uint64_t address, std::uint64_t size_bytes) const {
  if (segments_.is_leased(address, size_bytes)) return true;
  std::lock_guard lock(mutex_);
  const auto lease = entry_before(leases_, address);
  return lease != leases_.end() && lies_in(lease->first, lease->second.size_bytes, address, size_bytes);
}

void MemoryMap::remove_global(std::uint64_t address) {
  std::lock_guard lock(mutex_);
  globals_.erase(address);
  ++losses_;
}

std::uint64_t MemoryMap::losses() const { return losses_ + segments_.losses() + external_->losses(); }

bool MemoryMap::owns_device(std::uint64_t address, std::uint64_t size_bytes) const {
  return lies_in_own(address, size_bytes) || external_->holds(address, size_bytes);
}

// An allocation lies in one chunk, but a copy may span neighbouring ones that the client carved as one, or has mapped side by side.
bool MemoryMap::lies_in_own(std::uint64_t address, std::uint64_t size_bytes) const {
  std::lock_guard lock(mutex_);
  return usable_.contains(address, size_bytes) || lies_in_laid(address, size_bytes) || mpsshim::broker::contains(globals_, address, size_bytes);
}

}  // namespace mpsshim::broker
