// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/virtual_memory.hpp"

#include <cstring>
#include <vector>

#include "interposer/forward/memory/allocation_owner.hpp"
#include "interposer/forward/memory/device_memory.hpp"
#include "interposer/forward/memory/peer_pieces.hpp"
#include "interposer/forward/memory/shared_memory.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::forward {

CUdevice device_having(std::uint32_t told) { return (told != 0 ? device_of_ordinal(told - 1) : std::nullopt).value_or(session_device()); }

VirtualMemory& VirtualMemory::instance() {
  return PerSession<VirtualMemory>::get([] { return new VirtualMemory(); });
}

CUresult VirtualMemory::ask_for_range(std::uint64_t size_bytes, std::uint64_t alignment, std::uint64_t wanted, std::uint64_t& address,
                                      RecipeBook::Key& recipe) {
  proto::RangeReserveRecord record{};
  record.size_bytes = size_bytes;
  record.alignment = alignment;
  record.address = wanted;
  proto::RangeReserveReply reply{};
  Answer answer;
  const CUresult error = session().call_kept(record, {}, reply, answer, recipe, [&](const proto::RangeReserveReply& given) {
    proto::RangeReserveRecord again = record;
    again.address = given.address;  // the application has seen it
    return recipe_of({}, again, 0);
  });
  address = reply.address;
  return error;
}

CUresult VirtualMemory::reserve(std::uint64_t size_bytes, std::uint64_t alignment, std::uint64_t wanted, std::uint64_t& address) {
  const std::lock_guard ordering(order_mutex_);
  Range range{size_bytes, 0};
  const CUresult error = DeviceMemory::instance().with_leases([&](DeviceLeases& leases) {
    CUresult result = ask_for_range(size_bytes, alignment, wanted, address, range.recipe);
    if (result == CUDA_ERROR_MAP_FAILED) {
      result = size_bytes <= UINT64_MAX - alignment ? leases.add(size_bytes + alignment) : CUDA_ERROR_OUT_OF_MEMORY;
      if (result == CUDA_SUCCESS) result = ask_for_range(size_bytes, alignment, wanted, address, range.recipe);
    }
    if (result == CUDA_SUCCESS) leases.chunk_added(address);
    return result == CUDA_ERROR_MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : result;
  });
  if (error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(mutex_);
  ranges_.emplace(address, range);
  has_been_used_.store(true, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::free_range(std::uint64_t address, std::uint64_t size_bytes) {
  const std::lock_guard ordering(order_mutex_);
  const auto range = ranges().find(address);
  if (range == ranges().end() || range->second.size_bytes != size_bytes || !is_free(address, size_bytes)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error = session().channel().post<proto::RangeFreeRecord>({}, 0, [&](proto::RangeFreeRecord& record, std::byte*, Place place) {
    record.address = address;
    record.size_bytes = size_bytes;
    session().end_recipe(range->second.recipe, place);
  });
  DeviceMemory::instance().with_leases([&](DeviceLeases& leases) { leases.chunk_removed(address); });
  const std::lock_guard lock(mutex_);
  ranges_.erase(range);
  return error;
}

proto::MemoryId VirtualMemory::new_id() {
  const std::uint32_t number = last_memory_.fetch_add(1, std::memory_order_relaxed) + 1;
  return proto::MemoryId::make(number, (ActingSession::index() << proto::kRealmShift) | 1);
}

CUresult VirtualMemory::create(std::uint64_t size_bytes, const Wishes& wishes, CUmemGenericAllocationHandle& handle) {
  const std::lock_guard ordering(order_mutex_);
  const proto::MemoryId id = new_id();
  const bool is_ordinary = wishes.compression == CU_MEM_ALLOCATION_COMP_NONE;
  const auto ask = [](const auto& record, auto reply) { return DeviceMemory::instance().call_with_room(record, reply); };
  const CUresult error = is_ordinary ? ask(proto::MemoryCreateRecord{id, size_bytes}, proto::MemoryCreateReply{})
                                     : ask(proto::MemoryCreateAsRecord{id, size_bytes, wishes.compression, 0}, proto::MemoryCreateAsReply{});
  if (error != CUDA_SUCCESS) return error;
  handle = id.value;
  const std::lock_guard lock(mutex_);
  Memory memory;
  memory.size_bytes = size_bytes;
  memory.is_exportable = wishes.is_exportable;
  memory.may_be_compressed = !is_ordinary;
  memory.buffer_id = next_buffer_id();
  memories_.emplace(handle, memory);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::open(const proto::MemoryName& name, CUmemGenericAllocationHandle& handle, bool& is_own) {
  const std::lock_guard ordering(order_mutex_);
  const proto::MemoryId id = new_id();
  OpenedMemory opened;
  if (const CUresult error = open_shared_memory(name, id, opened); error != CUDA_SUCCESS) return error;
  is_own = opened.is_own;
  proto::MemoryAdoptRecord record{};
  record.memory = id;
  proto::MemoryAdoptReply reply{};
  if (const CUresult error = session().channel().call({}, record, {}, reply); error != CUDA_SUCCESS) return error;
  handle = id.value;
  const std::lock_guard lock(mutex_);
  Memory memory;
  memory.size_bytes = reply.size_bytes;
  memory.is_exportable = true;
  memory.may_be_compressed = true;
  memory.device = opened.device;
  memory.buffer_id = next_buffer_id();
  memories_.emplace(handle, memory);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::release(CUmemGenericAllocationHandle handle) {
  const std::lock_guard ordering(order_mutex_);
  const auto found = memories().find(handle);
  if (found == memories().end() || found->second.references == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  return --found->second.references == 0 && found->second.mappings == 0 ? end_memory(found) : CUDA_SUCCESS;
}

CUresult VirtualMemory::end_memory(std::map<std::uint64_t, Memory>::iterator memory) {
  proto::MemoryReleaseRecord record{};
  record.memory = proto::MemoryId{memory->first};
  memories_.erase(memory);
  return session().channel().post({}, record);
}

CUresult VirtualMemory::map(std::uint64_t address, std::uint64_t size_bytes, CUmemGenericAllocationHandle handle) {
  const std::lock_guard ordering(order_mutex_);
  const auto memory = memories().find(handle);
  if (memory == memories().end() || memory->second.references == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_reserved(address, size_bytes) || size_bytes > memory->second.size_bytes) return CUDA_ERROR_INVALID_VALUE;
  if (size_bytes != memory->second.size_bytes) return CUDA_ERROR_NOT_SUPPORTED;  // a part, as the driver says
  if (!is_free(address, size_bytes)) return CUDA_ERROR_INVALID_VALUE;
  proto::MappingCreateRecord record{};
  record.address = address;
  record.size_bytes = size_bytes;
  record.memory = proto::MemoryId{handle};
  proto::MappingCreateReply reply{};
  Mapping mapping{size_bytes, handle, false, 0};
  const CUresult error = session().call_kept(record, {}, reply, mapping.recipe);
  if (error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(mutex_);
  ++memory->second.mappings;
  mappings_.emplace(address, mapping);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::unmap(std::uint64_t address, std::uint64_t size_bytes) {
  const std::lock_guard ordering(order_mutex_);
  if (!is_filled(address, size_bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (auto mapping = mappings().find(address); mapping != mappings().end() && mapping->first - address < size_bytes;) {
    const std::uint64_t at = (mapping++)->first;
    if (const CUresult error = end_mapping(at); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::note_peer(Mappings::iterator mapping, std::uint32_t by, bool is_accessible) {
  const std::uint32_t owner = ActingSession::index(), bit = 1u << by;
  {
    const ActingSession acting(by);
    if (!is_accessible) PeerPieces::instance().close(mapping->first);
    const AddressRange range{mapping->first, mapping->second.size_bytes};
    const CUresult error = is_accessible ? PeerPieces::instance().open(owner, mapping->second.memory, range) : CUDA_SUCCESS;
    if (error != CUDA_SUCCESS) return error;
  }
  const std::lock_guard lock(mutex_);
  mapping->second.reached_by = is_accessible ? mapping->second.reached_by | bit : mapping->second.reached_by & ~bit;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::set_peer_access(std::uint64_t address, std::uint64_t size_bytes, std::uint32_t by, bool is_accessible) {
  const std::lock_guard ordering(order_mutex_);
  if (!is_filled(address, size_bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Mappings::iterator> changed;
  for (auto mapping = mappings().find(address); mapping != mappings().end() && mapping->first - address < size_bytes; ++mapping) {
    if (((mapping->second.reached_by >> by & 1) != 0) == is_accessible) continue;
    if (const CUresult error = note_peer(mapping, by, is_accessible); error != CUDA_SUCCESS) {
      for (const auto& opened : changed) (void)note_peer(opened, by, false);
      return error;
    }
    changed.push_back(mapping);
  }
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::end_mapping(std::uint64_t address) {
  const auto reached = mappings().find(address);
  for (std::uint32_t by = 0; by < kMaxSessions; ++by) {
    if ((reached->second.reached_by >> by & 1) != 0) (void)note_peer(reached, by, false);
  }
  const std::lock_guard lock(mutex_);
  const auto mapping = mappings_.find(address);
  const auto memory = memories_.find(mapping->second.memory);
  const CUresult error = session().channel().post<proto::MappingEndRecord>({}, 0, [&](proto::MappingEndRecord& record, std::byte*, Place place) {
    record.address = address;
    session().end_recipe(mapping->second.recipe, place);
  });
  mappings_.erase(mapping);
  if (--memory->second.mappings != 0 || memory->second.references != 0 || error != CUDA_SUCCESS) return error;
  return end_memory(memory);
}

CUresult VirtualMemory::set_access(std::uint64_t address, std::uint64_t size_bytes, bool is_accessible) {
  const std::lock_guard ordering(order_mutex_);
  if (!is_filled(address, size_bytes)) return CUDA_ERROR_INVALID_VALUE;
  proto::MappingAccessRecord record{};
  record.address = address;
  record.size_bytes = size_bytes;
  record.is_accessible = is_accessible;
  proto::MappingAccessReply reply{};
  Answer answer;
  const auto first = mappings().find(address);
  // The mappings' recipes make them as they are from now on; an executor that is gone meanwhile has taken the change with it.
  const auto note = [&](Link& link) {
    if (link.epoch() != answer.epoch || !Channel::is_active(link)) return false;
    mutex_.assume_held();  // to read: order_mutex_ is
    for (auto mapping = first; mapping != mappings_.end() && mapping->first - address < size_bytes; ++mapping) {
      Recipe* recipe = session().recipes().find(mapping->second.recipe);
      proto::MappingCreateRecord made{};
      std::memcpy(&made, recipe->body.data(), proto::MappingCreateRecord::kBodyBytes);
      made.is_accessible = record.is_accessible;
      std::memcpy(recipe->body.data(), &made, proto::MappingCreateRecord::kBodyBytes);
    }
    return true;
  };
  do {
    answer = Answer{};
    if (const CUresult error = session().channel().call({}, record, {}, reply, &answer); error != CUDA_SUCCESS) return error;
  } while (!session().channel().locked(note));
  const std::lock_guard lock(mutex_);
  for (auto mapping = first; mapping != mappings_.end() && mapping->first - address < size_bytes; ++mapping) {
    mapping->second.is_accessible = is_accessible;
  }
  return CUDA_SUCCESS;
}

bool VirtualMemory::is_reserved(std::uint64_t address, std::uint64_t size_bytes) const {
  mutex_.assume_held();  // to read: order_mutex_ is
  auto range = ranges_.upper_bound(address);
  if (size_bytes == 0 || range == ranges_.begin()) return false;
  --range;
  return AddressRange{range->first, range->second.size_bytes}.holds(address, size_bytes);
}

bool VirtualMemory::is_free(std::uint64_t address, std::uint64_t size_bytes) const {
  mutex_.assume_held();  // to read: order_mutex_ is
  auto mapping = mappings_.lower_bound(address + size_bytes);
  if (mapping == mappings_.begin()) return true;
  --mapping;
  return mapping->first + mapping->second.size_bytes <= address;
}

bool VirtualMemory::is_filled(std::uint64_t address, std::uint64_t size_bytes) const {
  mutex_.assume_held();  // to read: order_mutex_ is
  if (size_bytes == 0) return false;
  for (std::uint64_t left = size_bytes; left != 0;) {
    const auto mapping = mappings_.find(address);
    if (mapping == mappings_.end() || mapping->second.size_bytes > left) return false;
    left -= mapping->second.size_bytes;
    address += mapping->second.size_bytes;
  }
  return true;
}

std::optional<VirtualMemory::Found> VirtualMemory::find(std::uint64_t address) const {
  if (!has_been_used_.load(std::memory_order_relaxed)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  auto mapping = mappings_.upper_bound(address);
  if (mapping == mappings_.begin()) return std::nullopt;
  --mapping;
  const AddressRange range{mapping->first, mapping->second.size_bytes};
  if (!range.holds(address, 1)) return std::nullopt;
  const Memory& memory = memories_.at(mapping->second.memory);
  return Found{range, memory.buffer_id, mapping->second.is_accessible, memory.is_exportable, memory.device, mapping->second.reached_by};
}

std::optional<CUmemGenericAllocationHandle> VirtualMemory::retain(std::uint64_t address) {
  const std::lock_guard ordering(order_mutex_);
  const std::lock_guard lock(mutex_);
  auto mapping = mappings_.upper_bound(address);
  if (mapping == mappings_.begin()) return std::nullopt;
  --mapping;
  if (!AddressRange{mapping->first, mapping->second.size_bytes}.holds(address, 1)) return std::nullopt;
  Memory& memory = memories_.at(mapping->second.memory);
  ++memory.references;
  return mapping->second.memory;
}

std::optional<VirtualMemory::Properties> VirtualMemory::properties(CUmemGenericAllocationHandle handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = memories_.find(handle);
  if (found == memories_.end() || found->second.references == 0) return std::nullopt;
  return Properties{found->second.size_bytes, found->second.is_exportable, found->second.may_be_compressed, found->second.device};
}

CUresult VirtualMemory::compression(CUmemGenericAllocationHandle handle, std::uint32_t& compression) {
  proto::MemoryPropertiesRecord record{};
  record.memory = proto::MemoryId{handle};
  proto::MemoryPropertiesReply reply{};
  const CUresult error = session().channel().call({}, record, {}, reply);
  compression = reply.compression;
  return error;
}

}  // namespace mpsshim::interposer::forward
