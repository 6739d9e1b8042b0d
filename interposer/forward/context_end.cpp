// SPDX-License-Identifier: Apache-2.0
// What contexts have to do with the executor: what one takes with it when it ends (cuCtxDestroy, cuDevicePrimaryCtxReset), and its limits.
#include <mutex>

#include "interposer/forward/arrays/arrays.hpp"
#include "interposer/forward/events.hpp"
#include "interposer/forward/green_contexts.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/forward/memory/device_memory.hpp"
#include "interposer/forward/memory/external_memory.hpp"
#include "interposer/forward/memory/memory_pools.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/forward/memory/registered.hpp"
#include "interposer/forward/modules.hpp"
#include "interposer/forward/peer_access.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

namespace {

// All contexts of a session are one to the executor: the last that asked has its wish.
struct PersistingCache {
  Mutex mutex;
  CUcontext owner GUARDED_BY(mutex) = nullptr;
  RecipeBook::Key recipe GUARDED_BY(mutex) = 0;
};
PersistingCache& persisting_cache() {
  return PerSession<PersistingCache>::get([] { return new PersistingCache(); });
}

CUresult post_persisting_cache(PersistingCache& cache, std::size_t bytes) REQUIRES(cache.mutex) {
  return session().channel().post<proto::PersistingCacheRecord>({}, 0, [&](proto::PersistingCacheRecord& record, std::byte*, Place place) {
    cache.mutex.assume_held();
    record.size_bytes = bytes;
    session().end_recipe(cache.recipe, place);
    cache.recipe = session().recipes().add(recipe_of({}, record, place.position));
  });
}

void release_persisting_cache(CUcontext context) {
  PersistingCache& cache = persisting_cache();
  const std::lock_guard lock(cache.mutex);
  if (cache.owner != context) return;
  cache.owner = nullptr;
  (void)post_persisting_cache(cache, 0);
}

}  // namespace

void release_context_objects(CUcontext context) {
  PeerAccess::instance().forget(to_id(context).value);
  // After a sticky error there is nobody to tell; the control process releases all of it when this process ends.
  if (synchronize_all_streams() != CUDA_SUCCESS || !session().is_attached()) return;
  if (const auto found = find_context(context); found && found->primary) GreenContexts::instance().destroy_all();
  release_persisting_cache(context);
  Events::instance().destroy_all_of(context);
  const auto ending = find_context(context);
  const proto::GreenContextId part = ending ? ending->part : proto::GreenContextId{};
  if (part != proto::GreenContextId{}) GreenContexts::instance().forget_null_stream(part);
  Streams::instance().destroy_all_of(context);
  if (part != proto::GreenContextId{}) (void)GreenContexts::instance().destroy(part);
  destroy_samplers_of(context);
  Arrays::instance().destroy_all_of(context);
  ExternalMemories::instance().end_all_of(context);
  Modules::instance().unload_all_of(context);
  RegisteredMemory::instance().remove_all_of(context);
  ManagedMemory::instance().free_all_of(context);
  PinnedMemory::instance().free_all_of(context);
  MemoryPools::instance().free_all_of(context);
  DeviceMemory::instance().free_all_of(context);
}

CUresult raise_context_limit(CUlimit limit, std::size_t value) {
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  const proto::ContextLimitRecord record{static_cast<std::uint32_t>(limit), 0, value};
  proto::ContextLimitReply reply{};
  RecipeBook::Key recipe = 0;  // the context keeps it, and so does the next one
  return session().call_kept(record, {}, reply, recipe);
}

CUresult set_persisting_cache(CUcontext context, std::size_t bytes) {
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  PersistingCache& cache = persisting_cache();
  const std::lock_guard lock(cache.mutex);
  cache.owner = context;
  return post_persisting_cache(cache, bytes);
}

CUresult renew_process_objects() { return Modules::instance().renew_libraries(); }

}  // namespace mpsshim::interposer::forward
