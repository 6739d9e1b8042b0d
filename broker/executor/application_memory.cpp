// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/application_memory.hpp"

#include <array>

#include "broker/executor/control_link.hpp"
#include "broker/executor/memory_map.hpp"

namespace mpsshim::broker {

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
  const std::lock_guard lock(mutex_);
  if (pieces_.contains(id.value)) return CUDA_ERROR_INVALID_VALUE;
  if (!map_.claim_descriptor()) return CUDA_ERROR_OUT_OF_MEMORY;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.allocFlags.compressionType = static_cast<unsigned char>(compression);
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = driver_->cuMemCreate(&handle, size_bytes, &properties, 0);
  if (result == CUDA_SUCCESS) {
    int fd = -1;
    result = driver_->cuMemExportToShareableHandle(AddressKey(), &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    const proto::FileDescriptor exported(fd);
    if (result != CUDA_SUCCESS) driver_->cuMemRelease(handle);
    if (result == CUDA_SUCCESS) result = add(id, size_bytes, handle);
    if (result == CUDA_SUCCESS) tell_created(id, size_bytes, exported);  // before the client hears of it
  }
  if (result != CUDA_SUCCESS) map_.give_back_descriptor();
  return result;
}

CUresult ApplicationMemory::properties(proto::MemoryId id, std::uint32_t& compression) const {
  const std::lock_guard lock(mutex_);
  const auto piece = pieces_.find(id.value);
  if (piece == pieces_.end()) return CUDA_ERROR_INVALID_VALUE;
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
  if (result == CUDA_SUCCESS) tell_created(id, size_bytes, handle);
  return result;
}

void ApplicationMemory::tell_created(proto::MemoryId id, std::uint64_t size_bytes, const proto::FileDescriptor& handle) {
  ExecutorPacket packet;
  packet.header = {ExecutorMessage::chunk_created, 0, session_};
  packet.object = id.value;
  packet.size_bytes = size_bytes;
  control_.send(packet, std::array{handle.get()});
}

bool ApplicationMemory::release(proto::MemoryId id) {
  const std::lock_guard lock(mutex_);
  const auto found = pieces_.find(id.value);
  if (found == pieces_.end() || found->second.is_released) return false;
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
  ExecutorPacket packet;
  packet.header = {ExecutorMessage::chunk_released, 0, session_};
  packet.object = id;
  control_.send(packet);
}

CUresult ApplicationMemory::set_driver_access(std::uint64_t address, std::uint64_t size_bytes, bool is_accessible) {
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device_},
                               is_accessible ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE};
  return driver_->cuMemSetAccess(AddressKey(), address, size_bytes, &access, 1);
}

CUresult ApplicationMemory::map(std::uint64_t address, std::uint64_t size_bytes, proto::MemoryId id, bool is_accessible) {
  const std::lock_guard lock(mutex_);
  const auto piece = pieces_.find(id.value);
  // Released: only where recovery maps again what was mapped while there was a handle.
  if (piece == pieces_.end() || size_bytes != piece->second.size_bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!map_.is_reserved(address, size_bytes) || touching(address, size_bytes) != mappings_.end()) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = driver_->cuMemMap(AddressKey(), address, size_bytes, 0, piece->second.handle, 0);
  if (result != CUDA_SUCCESS) return result;
  if (is_accessible) result = set_driver_access(address, size_bytes, true);
  if (result != CUDA_SUCCESS) {
    driver_->cuMemUnmap(AddressKey(), address, size_bytes);
    return result;
  }
  mappings_.emplace(address, Mapping{size_bytes, id.value});
  ++piece->second.mappings;
  if (is_accessible) map_.add_region(address, size_bytes);
  return CUDA_SUCCESS;
}

bool ApplicationMemory::is_filled(std::uint64_t address, std::uint64_t size_bytes) const {
  for (std::uint64_t left = size_bytes; left != 0;) {
    const auto mapping = mappings_.find(address);
    if (mapping == mappings_.end() || mapping->second.given_up != 0 || mapping->second.size_bytes > left) return false;
    left -= mapping->second.size_bytes;
    address += mapping->second.size_bytes;
  }
  return true;
}

bool ApplicationMemory::forbid(std::uint64_t address, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  if (!is_filled(address, size_bytes)) return false;
  for (auto mapping = mappings_.find(address); mapping != mappings_.end() && mapping->first - address < size_bytes; ++mapping) {
    map_.remove_region(mapping->first);
  }
  return true;
}

CUresult ApplicationMemory::set_access(std::uint64_t address, std::uint64_t size_bytes, bool is_accessible) {
  const std::lock_guard lock(mutex_);
  if (!is_filled(address, size_bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (auto mapping = mappings_.find(address); mapping != mappings_.end() && mapping->first - address < size_bytes; ++mapping) {
    const CUresult result = set_driver_access(mapping->first, mapping->second.size_bytes, is_accessible);
    if (result != CUDA_SUCCESS) return result;
    if (is_accessible) map_.add_region(mapping->first, mapping->second.size_bytes);
  }
  return CUDA_SUCCESS;
}

bool ApplicationMemory::forget(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = mappings_.find(address);
  if (found == mappings_.end() || found->second.given_up != 0) return false;
  found->second.given_up = map_.give_up();
  map_.remove_region(address);
  return true;
}

void ApplicationMemory::unmap_forgotten(std::uint64_t address, std::uint64_t size_bytes, std::uint64_t up_to) {
  const std::lock_guard lock(mutex_);
  for (auto mapping = touching(address, size_bytes); mapping != mappings_.end() && mapping->first - address < size_bytes;) {
    if (mapping->second.given_up == 0 || mapping->second.given_up > up_to) {
      ++mapping;
      continue;
    }
    driver_->cuMemUnmap(AddressKey(), mapping->first, mapping->second.size_bytes);
    const std::uint64_t id = mapping->second.piece;
    --pieces_.at(id).mappings;
    drop_if_unused(id);
    mapping = mappings_.erase(mapping);
  }
}

bool ApplicationMemory::has_forgotten(std::uint64_t address, std::uint64_t size_bytes) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, mapping] : mappings_) {
    if (mapping.given_up != 0 && begin < address + size_bytes && address < begin + mapping.size_bytes) return true;
  }
  return false;
}

bool ApplicationMemory::has_mappings(std::uint64_t address, std::uint64_t size_bytes) const {
  const std::lock_guard lock(mutex_);
  const auto mapping = mappings_.lower_bound(address);
  return mapping != mappings_.end() && mapping->first - address < size_bytes && mapping->second.given_up == 0;
}

void ApplicationMemory::release_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& [address, mapping] : mappings_) driver_->cuMemUnmap(AddressKey(), address, mapping.size_bytes);
  mappings_.clear();
  for (const auto& [id, piece] : pieces_) {
    driver_->cuMemRelease(piece.handle);
    map_.give_back_descriptor();
  }
  pieces_.clear();
}

}  // namespace mpsshim::broker
