// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/memory/application_memory.hpp"

#include <array>
#include <iterator>

#include "broker/executor/base/bulk_calls.hpp"
#include "broker/executor/link/control_link.hpp"
#include "broker/executor/memory/memory_map.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

namespace {
constexpr std::size_t kMostMappings = 65'536;
}

ApplicationMemory::Mappings::iterator ApplicationMemory::touching(std::uint64_t address, std::uint64_t size_bytes) {
  auto mapping = mappings_.upper_bound(address);
  if (mapping != mappings_.begin()) {
    const auto before = std::prev(mapping);
    if (address - before->first < before->second.size_bytes) return before;
  }
  return mapping != mappings_.end() && mapping->first - address < size_bytes ? mapping : mappings_.end();
}

CUresult ApplicationMemory::add(proto::MemoryId id, std::uint64_t size_bytes, CUmemGenericAllocationHandle handle) {
  if (pieces_.emplace(id.value, Piece{size_bytes, handle}).second) return CUDA_SUCCESS;
  driver_->cuMemRelease(handle);
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult ApplicationMemory::create(proto::MemoryId id, std::uint64_t size_bytes, std::uint32_t compression) {
  if (!id.has_kind() || compression > UINT8_MAX) return CUDA_ERROR_INVALID_VALUE;
  {
    const std::lock_guard lock(mutex_);
    if (pieces_.contains(id.value)) return CUDA_ERROR_INVALID_VALUE;
    if (!map_.claim_descriptor()) return CUDA_ERROR_OUT_OF_MEMORY;
    pieces_[id.value].is_made = false;
  }
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.allocFlags.compressionType = static_cast<unsigned char>(compression);
  CUmemGenericAllocationHandle handle = 0;
  int fd = -1;
  DeviceGrant grant;
  CUresult result = map_.limit().ask(size_bytes, grant);
  if (result == CUDA_SUCCESS) result = driver_->cuMemCreate(&handle, size_bytes, &properties, 0);
  if (result == CUDA_SUCCESS) {
    result = driver_->cuMemExportToShareableHandle(AddressKey(), &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS) driver_->cuMemRelease(handle);
  }
  const proto::FileDescriptor exported(fd);
  const std::lock_guard lock(mutex_);
  pieces_.erase(id.value);
  if (result == CUDA_SUCCESS) result = add(id, size_bytes, handle);
  if (result == CUDA_SUCCESS) tell_created(id, size_bytes, exported, grant.spend());  // before the client hears of it
  if (result != CUDA_SUCCESS) map_.give_back_descriptor();
  return result;
}

CUresult ApplicationMemory::properties(proto::MemoryId id, std::uint32_t& compression) const {
  const std::lock_guard lock(mutex_);
  const auto piece = pieces_.find(id.value);
  if (piece == pieces_.end() || !piece->second.is_made) return CUDA_ERROR_INVALID_VALUE;
  CUmemAllocationProp properties{};
  const CUresult result = driver_->cuMemGetAllocationPropertiesFromHandle(&properties, piece->second.handle);
  compression = properties.allocFlags.compressionType;
  return result;
}

CUresult ApplicationMemory::adopt(proto::MemoryId id, std::uint64_t size_bytes, const proto::FileDescriptor& handle_fd) {
  if (!id.has_kind()) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  if (!map_.claim_descriptor()) return CUDA_ERROR_OUT_OF_MEMORY;
  CUmemGenericAllocationHandle handle = 0;
  // The driver takes the file descriptor's number as a pointer value; it keeps no reference to the descriptor itself.
  CUresult result = driver_->cuMemImportFromShareableHandle(
      AddressKey(), &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(handle_fd.get())), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result == CUDA_SUCCESS) result = add(id, size_bytes, handle);
  if (result != CUDA_SUCCESS) map_.give_back_descriptor();
  return result;
}

CUresult ApplicationMemory::adopt_shared(proto::MemoryId id, std::uint64_t size_bytes, const proto::FileDescriptor& handle) {
  const CUresult result = adopt(id, size_bytes, handle);
  if (result == CUDA_SUCCESS) tell_created(id, size_bytes, handle, 0);
  return result;
}

void ApplicationMemory::tell_created(proto::MemoryId id, std::uint64_t size_bytes, const proto::FileDescriptor& handle, std::uint64_t grant) {
  control_.send({message::ChunkCreated{.session = session_, .chunk = id.value, .grant = grant, .size_bytes = size_bytes}, {.handle = handle.get()}});
}

bool ApplicationMemory::release(proto::MemoryId id) {
  const std::lock_guard lock(mutex_);
  const auto found = pieces_.find(id.value);
  if (found == pieces_.end() || found->second.is_released || !found->second.is_made) return false;
  found->second.is_released = true;
  drop_if_unused(id.value);
  return true;
}

void ApplicationMemory::drop_if_unused(std::uint64_t id) {
  const auto found = pieces_.find(id);
  if (found == pieces_.end() || !found->second.is_released || found->second.mappings != 0) return;
  driver_->cuMemRelease(found->second.handle);
  pieces_.erase(found);
  map_.give_back_descriptor();
  control_.send(message::ChunkReleased{.session = session_, .chunk = id});
}

CUresult ApplicationMemory::set_driver_access(std::uint64_t address, std::uint64_t size_bytes, bool is_accessible) {
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device_},
                               is_accessible ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE};
  return driver_->cuMemSetAccess(AddressKey(), address, size_bytes, &access, 1);
}

template <typename Call>
CUresult ApplicationMemory::unlocked(Mapping& mapping, Call&& call) {
  mapping.is_busy = true;
  CUresult result = CUDA_SUCCESS;
  {
    const Unlocked meanwhile(mutex_);
    result = call();
  }
  mapping.is_busy = false;
  changed_.notify_all();
  return result;
}

CUresult ApplicationMemory::map(std::uint64_t address, std::uint64_t size_bytes, proto::MemoryId id, bool is_accessible) {
  std::unique_lock lock(mutex_);
  const auto piece = pieces_.find(id.value);
  // Released: only where recovery maps again what was mapped while there was a handle.
  if (piece == pieces_.end() || !piece->second.is_made || size_bytes != piece->second.size_bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!map_.is_reserved(address, size_bytes) || touching(address, size_bytes) != mappings_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (mappings_.size() >= kMostMappings) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto mapping = mappings_.emplace(address, Mapping{size_bytes, id.value}).first;
  live_.insert(address);
  if (!is_accessible) mapping->second.forbidden = map_.last_given_up() + 1;
  ++piece->second.mappings;  // it stays meanwhile
  const CUresult result = unlocked(mapping->second, [&, handle = piece->second.handle] {
    CUresult mapped = driver_->cuMemMap(AddressKey(), address, size_bytes, 0, handle, 0);
    if (mapped != CUDA_SUCCESS || !is_accessible) return mapped;
    mapped = set_driver_access(address, size_bytes, true);
    if (mapped != CUDA_SUCCESS) driver_->cuMemUnmap(AddressKey(), address, size_bytes);
    return mapped;
  });
  if (result != CUDA_SUCCESS) {
    forgotten_.erase(address);
    live_.erase(address);
    mappings_.erase(mapping);
    --piece->second.mappings;
    drop_if_unused(id.value);
    return result;
  }
  const bool is_usable = is_accessible && mapping->second.forbidden == 0 && mapping->second.given_up == 0;  // still
  if (is_usable) map_.add_region(address, size_bytes);
  return CUDA_SUCCESS;
}

bool ApplicationMemory::is_filled(std::uint64_t address, std::uint64_t size_bytes) const {
  auto mapping = mappings_.find(address);
  for (std::uint64_t left = size_bytes; left != 0; ++mapping) {
    if (mapping == mappings_.end() || mapping->first != address || mapping->second.given_up != 0 || mapping->second.size_bytes > left) return false;
    left -= mapping->second.size_bytes;
    address += mapping->second.size_bytes;
  }
  return true;
}

bool ApplicationMemory::note_access(std::uint64_t address, std::uint64_t size_bytes, std::uint64_t forbidden) {
  if (!is_filled(address, size_bytes)) return false;
  if (forbidden != 0) map_.remove_region(address, size_bytes);  // all of it at once: there may be thousands
  for (auto mapping = mappings_.find(address); mapping != mappings_.end() && mapping->first - address < size_bytes; ++mapping) {
    mapping->second.forbidden = forbidden;
  }
  return true;
}

bool ApplicationMemory::forbid(std::uint64_t address, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  return note_access(address, size_bytes, map_.give_up());
}

bool ApplicationMemory::allow(std::uint64_t address, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  return note_access(address, size_bytes, 0);
}

bool ApplicationMemory::is_quick(std::uint64_t address, std::uint64_t size_bytes) const {
  const std::lock_guard lock(mutex_);
  const auto mapping = mappings_.find(address);
  return mapping == mappings_.end() || (mapping->second.size_bytes == size_bytes && !mapping->second.is_busy);
}

CUresult ApplicationMemory::set_access(std::uint64_t address, std::uint64_t size_bytes, std::uint64_t up_to) {
  BulkCalls calls(map_.bulk_lane());
  std::unique_lock lock(mutex_);
  if (!is_filled(address, size_bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (std::uint64_t at = address; at - address < size_bytes;) {
    const auto mapping = mappings_.find(at);
    if (mapping == mappings_.end() || mapping->second.given_up != 0) return CUDA_ERROR_INVALID_VALUE;  // meanwhile
    if (mapping->second.is_busy) {
      changed_.wait(lock);  // for one call of the driver
      continue;
    }
    Mapping& one = mapping->second;
    const bool is_allowed = one.forbidden == 0;
    if (is_allowed || one.forbidden <= up_to) {
      const CUresult result = unlocked(one, [&] { return set_driver_access(at, one.size_bytes, is_allowed); });
      if (result != CUDA_SUCCESS) return result;
      if (is_allowed && one.forbidden == 0 && one.given_up == 0) map_.add_region(at, one.size_bytes);
    }
    at += one.size_bytes;
    if (at - address >= size_bytes) break;
    lock.unlock();
    calls.yield();
    lock.lock();
  }
  return CUDA_SUCCESS;
}

bool ApplicationMemory::forget(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = mappings_.find(address);
  if (found == mappings_.end() || found->second.given_up != 0) return false;
  found->second.given_up = map_.give_up();
  forgotten_.insert(address);
  live_.erase(address);
  map_.remove_region(address, found->second.size_bytes);
  return true;
}

void ApplicationMemory::unmap_forgotten(std::uint64_t address, std::uint64_t size_bytes, std::uint64_t up_to) {
  BulkCalls calls(map_.bulk_lane());
  std::unique_lock lock(mutex_);
  const auto first = touching(address, size_bytes);
  if (first == mappings_.end()) return;
  for (auto next = forgotten_.lower_bound(first->first); next != forgotten_.end() && (*next < address || *next - address < size_bytes);) {
    const std::uint64_t begin = *next;
    const auto mapping = mappings_.find(begin);
    if (mapping->second.is_busy) {
      changed_.wait(lock);  // for one call of the driver
      next = forgotten_.lower_bound(begin);
      continue;
    }
    if (mapping->second.given_up > up_to) {
      ++next;
      continue;
    }
    (void)unlocked(mapping->second, [&] { return driver_->cuMemUnmap(AddressKey(), begin, mapping->second.size_bytes); });
    const std::uint64_t id = mapping->second.piece;
    mappings_.erase(mapping);
    forgotten_.erase(begin);
    --pieces_.at(id).mappings;
    drop_if_unused(id);
    next = forgotten_.upper_bound(begin);
    if (next == forgotten_.end()) break;
    lock.unlock();
    calls.yield();
    lock.lock();
    next = forgotten_.upper_bound(begin);
  }
}

bool ApplicationMemory::has_forgotten(std::uint64_t address, std::uint64_t size_bytes) const {
  const std::lock_guard lock(mutex_);
  const auto inside = forgotten_.lower_bound(address);
  if (inside != forgotten_.end() && *inside - address < size_bytes) return true;
  return inside != forgotten_.begin() && address - *std::prev(inside) < mappings_.at(*std::prev(inside)).size_bytes;
}

bool ApplicationMemory::has_mappings(std::uint64_t address, std::uint64_t size_bytes) const {
  const std::lock_guard lock(mutex_);
  const auto mapping = live_.lower_bound(address);
  return mapping != live_.end() && *mapping - address < size_bytes;
}

void ApplicationMemory::release_all() {
  Mappings mappings;
  std::map<std::uint64_t, Piece> pieces;
  {
    const std::lock_guard lock(mutex_);
    mappings.swap(mappings_);
    pieces.swap(pieces_);
    forgotten_.clear();
    live_.clear();
  }
  BulkCalls calls(map_.bulk_lane());
  for (const auto& [address, mapping] : mappings) {
    calls.before_call();
    driver_->cuMemUnmap(AddressKey(), address, mapping.size_bytes);
  }
  for (const auto& [id, piece] : pieces) {
    calls.before_call();
    driver_->cuMemRelease(piece.handle);
    map_.give_back_descriptor();
  }
}

}  // namespace mpsshim::broker
