// SPDX-License-Identifier: Apache-2.0
// Memory pools between processes (CUDA Driver API manual, "cuMemPoolExportToShareableHandle"). A pool's handle is a descriptor with a random name
// in it, which says no more than which pool it is; an exported pointer carries that name and where the allocation lies (IpcMemory), and is
// imported into a pool of that name. Any thread.
#pragma once

#include <atomic>
#include <map>

#include "gen/cuda_api.hpp"
#include "proto/client_requests.hpp"
#include "proto/mutex.hpp"
#include "proto/segment.hpp"

namespace mpsshim::interposer::forward {

class SharedPools {
 public:
  [[nodiscard]] static SharedPools& instance();

  // Pools of this process that were made to be shared. Others cannot be exported.
  void add(CUmemoryPool pool);
  [[nodiscard]] CUresult export_pool(CUmemoryPool pool, proto::FileDescriptor& file);
  [[nodiscard]] CUresult export_pointer(std::uint64_t address, CUmemPoolPtrExportData& data);

  // An imported pool gives no memory.
  [[nodiscard]] CUresult import_pool(int fd, CUmemoryPool& pool);
  [[nodiscard]] CUresult import_pointer(CUmemoryPool pool, const CUmemPoolPtrExportData& data, CUcontext context, std::uint64_t& address);
  [[nodiscard]] bool is_imported(CUmemoryPool pool) const { return has_imported_.load(std::memory_order_relaxed) && look(pool); }
  // Of this process's pools and imported ones alike.
  void forget(CUmemoryPool pool);

 private:
  [[nodiscard]] CUresult name_of(CUmemoryPool pool, proto::MemoryName& name);
  [[nodiscard]] bool look(CUmemoryPool pool) const;

  mutable Mutex mutex_;
  std::map<CUmemoryPool, proto::MemoryName> exportable_ GUARDED_BY(mutex_);
  std::map<CUmemoryPool, proto::MemoryName> imported_ GUARDED_BY(mutex_);
  std::atomic<bool> has_imported_{false};  // who imports nothing pays one load for each allocation
};

}  // namespace mpsshim::interposer::forward
