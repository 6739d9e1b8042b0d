// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/external_memory.hpp"

#include <algorithm>
#include <memory>

#include <fcntl.h>
#include <unistd.h>

#include "interposer/channel/connection.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/forward/memory/shared_memory.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/settle.hpp"
#include "proto/channel.hpp"

namespace mpsshim::interposer::forward {

namespace {

AddressRange pages_of(AddressRange range) {
  const std::uint64_t begin = range.address / proto::kPageBytes * proto::kPageBytes;
  const std::uint64_t end = (range.end() + proto::kPageBytes - 1) / proto::kPageBytes * proto::kPageBytes;
  return {begin, end - begin};
}

bool overlap(AddressRange one, AddressRange other) { return one.address < other.end() && other.address < one.end(); }

}  // namespace

ExternalMemories& ExternalMemories::instance() {
  return PerSession<ExternalMemories>::get([] { return new ExternalMemories(); });
}

ExternalMemories::Memory* ExternalMemories::resolve(CUexternalMemory handle) const {
  return memories_.find(id_of<proto::HandleKind::external_memory>(handle)).get();
}

// Memory that a client of this broker has exported is known by its name; what else it is, the control process looks at.
CUresult ExternalMemories::announce(const Source& source, int fd, proto::ExternalMemoryId id) {
  proto::MemoryName name;
  OpenedMemory opened;
  if (source.handle_type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD && read_name(fd, name)) {
    return open_shared_memory(name, proto::MemoryId{id.value}, opened);
  }
  if (const CUresult error = session().look(); error != CUDA_SUCCESS) return error;
  proto::ExternalOffer question;
  question.memory = id.value;
  question.size_bytes = source.size_bytes;
  question.handle_type = source.handle_type;
  proto::ExternalTaken answer;
  return connection().ask(question, answer, {.handle = fd});
}

CUresult ExternalMemories::import_announced(const Source& source, int fd, Memory& memory) {
  constexpr int kMostAttempts = 4;  // an executor that came meanwhile has been told nothing
  CUresult error = CUDA_SUCCESS;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    error = announce(source, fd, memory.id);
    if (error != CUDA_SUCCESS) return error;
    proto::ExternalImportRecord record{};
    record.memory = memory.id;
    record.size_bytes = source.size_bytes;
    record.flags = source.flags;
    proto::ExternalImportReply reply{};
    error = session().call_kept(record, {}, reply, memory.recipe);
    if (error != CUDA_ERROR_MPS_SERVER_NOT_READY) return error;
  }
  return error;
}

CUresult ExternalMemories::import(const Source& source, CUcontext context, CUexternalMemory& handle) {
  const proto::FileDescriptor own(fcntl(source.fd, F_DUPFD_CLOEXEC, 0));  // one that is none would break the connection
  if (!own.valid()) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard ordering(order_mutex_);
  auto object = std::make_unique<Memory>();
  Memory& memory = *object;
  memory.size_bytes = source.size_bytes;
  memory.context = context;
  const proto::ExternalMemoryId id = memories_.add(std::move(object));
  if (id == proto::ExternalMemoryId{}) return CUDA_ERROR_OUT_OF_MEMORY;
  memory.id = id;
  const CUresult error = import_announced(source, own.get(), memory);
  if (error != CUDA_SUCCESS) {
    (void)memories_.take(id);
    return error;
  }
  close(source.fd);  // it is the driver's now
  handle = to_handle<CUexternalMemory>(id);
  return CUDA_SUCCESS;
}

CUresult ExternalMemories::ask_for_buffer(const Memory& memory, std::uint64_t offset, std::uint64_t size_bytes, std::uint64_t& address,
                                          RecipeBook::Key& recipe) {
  proto::ExternalMapRecord record{};
  record.memory = memory.id;
  record.offset = offset;
  record.size_bytes = size_bytes;
  proto::ExternalMapReply reply{};
  const CUresult error = session().call_kept(record, {}, reply, recipe);
  address = reply.address;
  return error;
}

CUresult ExternalMemories::map(CUexternalMemory handle, std::uint64_t offset, std::uint64_t size_bytes, CUcontext context, std::uint64_t& address) {
  const std::lock_guard ordering(order_mutex_);
  const Memory* memory = resolve(handle);
  if (memory == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (size_bytes == 0 || offset > memory->size_bytes || size_bytes > memory->size_bytes - offset) return CUDA_ERROR_INVALID_VALUE;
  // Where this process has something at the address that the driver gave, another one is asked for before that is given back.
  constexpr std::size_t kMostAttempts = 8;
  std::vector<std::pair<std::uint64_t, RecipeBook::Key>> misplaced;
  CUresult error = CUDA_ERROR_OUT_OF_MEMORY;
  while (misplaced.size() < kMostAttempts) {
    Buffer buffer;
    buffer.size_bytes = size_bytes;
    error = ask_for_buffer(*memory, offset, size_bytes, address, buffer.recipe);
    if (error != CUDA_SUCCESS) break;
    if (keep_free(address, buffer)) {
      buffer.owner = {context, next_buffer_id()};
      const std::lock_guard lock(mutex_);
      buffers_.emplace(address, std::move(buffer));
      has_been_used_.store(true, std::memory_order_relaxed);
      break;
    }
    misplaced.emplace_back(address, buffer.recipe);
    error = CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (const auto& [at, recipe] : misplaced) (void)end_buffer(at, recipe);
  return error;
}

// True if the addresses are this process's for the buffer.
bool ExternalMemories::keep_free(std::uint64_t address, Buffer& buffer) {
  if (overlapping({address, buffer.size_bytes}) != mapped_buffers().end()) return true;
  const AddressRange pages = pages_of({address, buffer.size_bytes});
  buffer.kept_free = proto::Reservation::at(pages.address, pages.size_bytes);
  return static_cast<bool>(buffer.kept_free);
}

ExternalMemories::Buffers::iterator ExternalMemories::overlapping(AddressRange range) {
  return std::ranges::find_if(mapped_buffers(), [&](const auto& entry) {
    return overlap(pages_of(range), pages_of({entry.first, entry.second.size_bytes}));
  });
}

CUresult ExternalMemories::map_array(CUexternalMemory handle, const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC& description, CUcontext context,
                                     Array*& array) {
  const std::lock_guard ordering(order_mutex_);
  const Memory* memory = resolve(handle);
  if (memory == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (description.offset >= memory->size_bytes) return CUDA_ERROR_INVALID_VALUE;
  return Arrays::instance().map(memory->id, description.offset, description.arrayDesc, description.numLevels, context, array);
}

CUresult ExternalMemories::destroy(CUexternalMemory handle) {
  const std::lock_guard ordering(order_mutex_);
  const Memory* memory = resolve(handle);
  if (memory == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const proto::ExternalMemoryId id = memory->id;
  const CUresult error =
      session().channel().post<proto::ExternalReleaseRecord>({}, 0, [&](proto::ExternalReleaseRecord& record, std::byte*, Place at) {
        record.memory = id;
        session().end_recipe(memory->recipe, at);
      });
  (void)memories_.take(id);
  return error;
}

CUresult ExternalMemories::end_buffer(std::uint64_t address, RecipeBook::Key recipe) {
  return session().channel().post<proto::ExternalUnmapRecord>({}, 0, [&](proto::ExternalUnmapRecord& record, std::byte*, Place at) {
    record.address = address;
    session().end_recipe(recipe, at);
  });
}

CUresult ExternalMemories::free(std::uint64_t address) {
  if (const CUresult error = synchronize_all_streams(); error != CUDA_SUCCESS) return error;
  const std::lock_guard ordering(order_mutex_);
  const std::lock_guard lock(mutex_);
  auto node = buffers_.extract(address);
  if (node.empty()) return CUDA_ERROR_INVALID_VALUE;
  const auto heir = overlapping({address, node.mapped().size_bytes});
  if (heir != buffers_.end() && !heir->second.kept_free) heir->second.kept_free = std::move(node.mapped().kept_free);
  return end_buffer(address, node.mapped().recipe);
}

void ExternalMemories::end_all_of(CUcontext context) {
  std::vector<std::uint64_t> buffers;
  std::vector<proto::ExternalMemoryId> memories;
  {
    const std::lock_guard ordering(order_mutex_);
    for (const auto& [address, buffer] : mapped_buffers()) {
      if (buffer.owner.context == context) buffers.push_back(address);
    }
    memories_.for_each([&](proto::ExternalMemoryId id, const Memory& memory) {
      if (memory.context == context) memories.push_back(id);
    });
  }
  for (const std::uint64_t address : buffers) (void)free(address);
  for (const proto::ExternalMemoryId id : memories) (void)destroy(to_handle<CUexternalMemory>(id));
}

std::optional<ExternalMemories::Found> ExternalMemories::find(std::uint64_t address) const {
  if (!has_been_used_.load(std::memory_order_relaxed)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, buffer] : buffers_) {
    if (const AddressRange range{begin, buffer.size_bytes}; range.holds(address, 1)) return Found{range, buffer.owner};
  }
  return std::nullopt;
}

}  // namespace mpsshim::interposer::forward
