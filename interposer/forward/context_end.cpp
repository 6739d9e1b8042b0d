// SPDX-License-Identifier: Apache-2.0
// What a context takes with it when it ends (cuCtxDestroy, cuDevicePrimaryCtxReset).
#include "interposer/forward/events.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/forward/memory/device_memory.hpp"
#include "interposer/forward/memory/memory_pools.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/forward/memory/registered.hpp"
#include "interposer/forward/modules.hpp"
#include "interposer/forward/streams.hpp"

namespace mpsshim::interposer::forward {

void release_context_objects(CUcontext context) {
  // After a sticky error there is nobody to tell; the control process releases all of it when this process ends.
  if (synchronize_all_streams() != CUDA_SUCCESS || !session().is_attached()) return;
  Events::instance().destroy_all_of(context);
  Streams::instance().destroy_all_of(context);
  Modules::instance().unload_all_of(context);
  RegisteredMemory::instance().remove_all_of(context);
  PinnedMemory::instance().free_all_of(context);
  MemoryPools::instance().free_all_of(context);
  DeviceMemory::instance().free_all_of(context);
}

}  // namespace mpsshim::interposer::forward
