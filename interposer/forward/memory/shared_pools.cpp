// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/shared_pools.hpp"

#include <cstring>

#include <sys/random.h>

#include "interposer/forward/memory/ipc_memory.hpp"
#include "interposer/forward/memory/memory_pools.hpp"
#include "interposer/forward/memory/shared_memory.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::uint64_t kPoolMagic = 0x6d50'5368'506f'6f6c;

struct ExportedPointer {
  std::uint64_t magic = 0;
  std::uint64_t pool = 0;  // the first word of its name
  IpcMemory::Place place;
};
static_assert(sizeof(ExportedPointer) <= sizeof(CUmemPoolPtrExportData));

}  // namespace

SharedPools& SharedPools::instance() {
  return PerSession<SharedPools>::get([] { return new SharedPools(); });
}

void SharedPools::add(CUmemoryPool pool) {
  const std::lock_guard lock(mutex_);
  exportable_.emplace(pool, proto::MemoryName{});
}

CUresult SharedPools::name_of(CUmemoryPool pool, proto::MemoryName& name) {
  const std::lock_guard lock(mutex_);
  const auto found = exportable_.find(pool);
  if (found == exportable_.end()) return CUDA_ERROR_INVALID_VALUE;
  proto::MemoryName& own = found->second;
  if (own == proto::MemoryName{} && getrandom(own.word, sizeof own.word, 0) != static_cast<ssize_t>(sizeof own.word)) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  name = own;
  return CUDA_SUCCESS;
}

CUresult SharedPools::export_pool(CUmemoryPool pool, proto::FileDescriptor& file) {
  proto::MemoryName name;
  if (const CUresult error = name_of(pool, name); error != CUDA_SUCCESS) return error;
  file = write_name(name, NameOf::pool);
  return file.valid() ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult SharedPools::export_pointer(std::uint64_t address, CUmemPoolPtrExportData& data) {
  std::optional<MemoryPools::Found> found;
  if (!MemoryPools::instance().look(address, found) || !found) return CUDA_ERROR_INVALID_VALUE;
  proto::MemoryName pool;
  if (const CUresult error = name_of(found->pool, pool); error != CUDA_SUCCESS) return error;
  ExportedPointer content;
  content.magic = kPoolMagic;
  content.pool = pool.word[0];
  if (const CUresult error = IpcMemory::place_of(found->range, content.place); error != CUDA_SUCCESS) return error;
  data = {};
  std::memcpy(&data, &content, sizeof content);
  return CUDA_SUCCESS;
}

CUresult SharedPools::import_pool(int fd, CUmemoryPool& pool) {
  proto::MemoryName name;
  if (!read_name(fd, name, NameOf::pool)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = MemoryPools::instance().create(0, pool); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(mutex_);
  imported_[pool] = name;
  has_imported_.store(true, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult SharedPools::import_pointer(CUmemoryPool pool, const CUmemPoolPtrExportData& data, CUcontext context, std::uint64_t& address) {
  ExportedPointer content;
  std::memcpy(static_cast<void*>(&content), &data, sizeof content);
  {
    const std::lock_guard lock(mutex_);
    const auto found = imported_.find(pool);
    if (found == imported_.end()) return CUDA_ERROR_INVALID_VALUE;
    if (content.magic != kPoolMagic || content.pool != found->second.word[0]) return CUDA_ERROR_INVALID_VALUE;
  }
  return IpcMemory::instance().open(content.place, pool, context, address);
}

bool SharedPools::look(CUmemoryPool pool) const {
  const std::lock_guard lock(mutex_);
  return imported_.contains(pool);
}

void SharedPools::forget(CUmemoryPool pool) {
  const std::lock_guard lock(mutex_);
  exportable_.erase(pool);
  imported_.erase(pool);
}

}  // namespace mpsshim::interposer::forward
