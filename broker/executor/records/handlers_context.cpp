// SPDX-License-Identifier: Apache-2.0
// Limits of the one context, which all sessions share: they only grow. The one that is taken from the others, the cache's, shrinks again.
#include <cstddef>

#include "broker/executor/records/dispatch.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::uint64_t kMemoryShare = 16;             // a limit may take one part in so many of the device's memory
constexpr std::uint64_t kMaxPrintfBytes = 256u << 20;  // in host memory as well
constexpr std::uint64_t kMaxPendingLaunches = 1u << 20;
constexpr std::uint64_t kMaxSyncDepth = 24;  // what the hardware had when it had any

std::uint64_t attribute(const ExecutorParts& parts, CUdevice_attribute which) {
  int value = 0;
  parts.driver->cuDeviceGetAttribute(&value, which, parts.device);
  return value > 0 ? static_cast<std::uint64_t>(value) : 1;
}

// Every thread that the device holds at once gets a stack.
bool is_affordable(const ExecutorParts& parts, CUlimit limit, std::uint64_t value) {
  std::size_t total_bytes = 0;
  parts.driver->cuDeviceTotalMem_v2(&total_bytes, parts.device);
  switch (limit) {
    case CU_LIMIT_STACK_SIZE: {
      const std::uint64_t threads =
          attribute(parts, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) * attribute(parts, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
      return value <= total_bytes / kMemoryShare / threads;
    }
    case CU_LIMIT_MALLOC_HEAP_SIZE: return value <= total_bytes / kMemoryShare;
    case CU_LIMIT_PRINTF_FIFO_SIZE: return value <= kMaxPrintfBytes;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: return value <= kMaxPendingLaunches;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: return value <= kMaxSyncDepth;
    default: return false;
  }
}

CUresult raise_limit(const ExecutorParts& parts, CUlimit limit, std::uint64_t value) {
  std::size_t current = 0;
  const CUresult result = parts.driver->cuCtxGetLimit(&current, limit);
  return result != CUDA_SUCCESS || current >= value ? result : parts.driver->cuCtxSetLimit(limit, value);
}

}  // namespace

void handle(OutOfLineCall& incoming, const proto::ContextLimitRecord& record) {
  Session& session = incoming.session;
  const auto limit = static_cast<CUlimit>(record.limit);
  if (!is_affordable(session.parts(), limit, record.value)) return incoming.reject(CUDA_ERROR_NOT_SUPPORTED);
  // A larger stack is memory for all threads: the driver waits for every kernel before it takes another.
  session.start_window_call("cuCtxSetLimit", [reply = incoming.share_reply(), &session, limit, value = record.value](WindowResult window) {
    const CUresult result = window == WindowResult::open ? raise_limit(session.parts(), limit, value) : CUDA_ERROR_MPS_SERVER_NOT_READY;
    reply->answer(session.parts().faults.check(result, session.id(), "cuCtxSetLimit"));
  });
}

// A hint to the hardware: nobody waits for it.
void handle(SessionPost& incoming, const proto::PersistingCacheRecord& record) {
  Session& session = incoming.session;
  session.parts().persisting_cache.wish(session.id(), record.size_bytes);
  session.start_window_job("cuCtxSetLimit",
                           [&session] { session.parts().faults.check(session.parts().persisting_cache.apply(), session.id(), "cuCtxSetLimit"); });
}

}  // namespace mpsshim::broker
