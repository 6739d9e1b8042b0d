// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/memory/external_memory.hpp"

#include <algorithm>
#include <utility>

#include "broker/executor/base/address_ranges.hpp"
#include "broker/executor/memory/checked_calls.hpp"
#include "broker/executor/memory/memory_map.hpp"

namespace mpsshim::broker {

ImportedMemory::~ImportedMemory() {
  driver_->cuDestroyExternalMemory(handle_);
  map_.give_back_descriptor();
}

CUresult ExternalMemory::import(proto::ExternalMemoryId id, const Request& request, proto::FileDescriptor descriptor) {
  if (request.size_bytes == 0 || request.size_bytes > request.announced_bytes) return CUDA_ERROR_INVALID_VALUE;
  {
    const std::lock_guard lock(mutex_);
    if (imports_.contains(id.value)) return CUDA_ERROR_INVALID_VALUE;
    if (imports_.size() >= kMostImports) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!map_.claim_descriptor()) return CUDA_ERROR_OUT_OF_MEMORY;
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC description{};
  description.type = static_cast<CUexternalMemoryHandleType>(request.handle_type);
  description.handle.fd = descriptor.get();
  description.size = request.size_bytes;
  description.flags = request.flags;
  CUexternalMemory handle = nullptr;
  const CUresult result = driver_->cuImportExternalMemory(AddressKey(), &handle, &description);
  if (result != CUDA_SUCCESS) {
    map_.give_back_descriptor();
    return result;
  }
  (void)descriptor.release();
  auto memory = std::make_shared<const ImportedMemory>(driver_, map_, handle, request.size_bytes, request.piece);
  const std::lock_guard lock(mutex_);
  return imports_.emplace(id.value, memory).second ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ImportedMemoryRef ExternalMemory::find(proto::ExternalMemoryId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = imports_.find(id.value);
  return found != imports_.end() ? found->second : nullptr;
}

CUresult ExternalMemory::map(const CheckedExternalBuffer& part, std::uint64_t& address) {
  {
    const std::lock_guard lock(mutex_);
    if (buffers_.size() + leaving_.size() >= kMostBuffers) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUdeviceptr mapped = 0;
  const CUresult result = CheckedCalls(driver_).map(mapped, part);
  if (result != CUDA_SUCCESS) return result;
  address = mapped;
  const std::lock_guard lock(mutex_);
  buffers_.emplace(address, Buffer{address, part.size_bytes(), part.memory()});
  return CUDA_SUCCESS;
}

ExternalMemory::Ticket ExternalMemory::leave(Buffer buffer) {
  leaving_.emplace(++last_ticket_, std::move(buffer));
  return last_ticket_;
}

ExternalMemory::Ticket ExternalMemory::forget(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto node = buffers_.extract(address);
  ++losses_;
  return node.empty() ? 0 : leave(node.mapped());
}

ExternalMemory::Ticket ExternalMemory::retire(proto::ExternalMemoryId id) {
  const std::lock_guard lock(mutex_);
  const auto node = imports_.extract(id.value);
  return node.empty() ? 0 : leave({0, 0, node.mapped()});
}

CUresult ExternalMemory::release(Ticket ticket) {
  std::map<Ticket, Buffer>::node_type node;
  {
    const std::lock_guard lock(mutex_);
    node = leaving_.extract(ticket);
  }
  return node.empty() ? CUDA_SUCCESS : end(node.mapped());
}

CUresult ExternalMemory::end(const Buffer& buffer) const {
  return buffer.address != 0 ? driver_->cuMemFree_v2(AddressKey(), buffer.address) : CUDA_SUCCESS;
}

bool ExternalMemory::holds(std::uint64_t address, std::uint64_t size_bytes) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(buffers_, [&](const auto& entry) { return lies_in(entry.first, entry.second.size_bytes, address, size_bytes); });
}

bool ExternalMemory::holds_any() const {
  const std::lock_guard lock(mutex_);
  return !imports_.empty() || !buffers_.empty();
}

void ExternalMemory::release_all() {
  std::multimap<std::uint64_t, Buffer> buffers;
  std::map<Ticket, Buffer> leaving;
  std::map<std::uint64_t, ImportedMemoryRef> imports;
  {
    const std::lock_guard lock(mutex_);
    buffers.swap(buffers_);
    leaving.swap(leaving_);
    imports.swap(imports_);
  }
  for (const auto& [address, buffer] : buffers) (void)end(buffer);
  for (const auto& [ticket, buffer] : leaving) (void)end(buffer);
}

}  // namespace mpsshim::broker
