// SPDX-License-Identifier: Apache-2.0
// Contexts as the application sees them, and which one is current in each thread (CUDA Driver API manual, "Context Management").
//
// All of a device stand for its session's one real context in the executor: they keep their own flags, limits and storage, but work of two
// contexts of one process shares streams' order and memory as work of one context does. Handles are proto::Id values, never addresses.
// Objects belong to the table; primary contexts live for ever. CUDA forbids using a context while another thread destroys it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "gen/cuda_api.hpp"
#include "interposer/local/context_storage.hpp"
#include "proto/device_facts.hpp"
#include "proto/handle_table.hpp"
#include "proto/ids.hpp"

namespace mpsshim::interposer {

using ContextId = proto::Id<proto::HandleKind::context>;

struct ContextObject {
  ContextObject(CUdevice on_device, bool is_primary, unsigned initial_flags, proto::GreenContextId of_green = {},
                proto::GreenContextId own_part = {});

  const CUdevice device;
  const bool primary;
  const proto::GreenContextId green;  // of which it is the other handle; {}: it is none
  const proto::GreenContextId part;   // of the multiprocessors, that it was made for (cuCtxCreate_v3); {}: it has all
  const std::uint64_t unique_id;      // cuCtxGetId: never reused in this process
  ContextStorage storage;
  std::atomic<unsigned> flags;
  std::atomic<CUfunc_cache> cache_config{CU_FUNC_CACHE_PREFER_NONE};
  std::atomic<CUsharedconfig> shared_config{CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE};
  std::array<std::atomic<std::uint64_t>, proto::kMaxContextLimits> limits{};

  // Primary contexts: how often it is retained. Changed under the lock of contexts.cpp; 0: inactive.
  std::atomic<std::uint32_t> retain_count{0};
  std::atomic<bool> was_active{false};
  // Created contexts: cuCtxAttach and cuCtxDetach; the last one destroys it.
  std::atomic<std::uint32_t> usage_count{1};
};

[[nodiscard]] inline CUcontext to_handle(ContextId id) { return reinterpret_cast<CUcontext>(id.value); }
[[nodiscard]] inline ContextId to_id(CUcontext handle) { return ContextId{reinterpret_cast<std::uintptr_t>(handle)}; }

// At most one way to wait, and no flag that CUDA does not know.
[[nodiscard]] bool valid_context_flags(unsigned flags);

// The object behind a handle; empty if there is none. Null is no handle.
[[nodiscard]] proto::Known<ContextObject> find_context(CUcontext handle);
// The same, with null for the calling thread's current context.
[[nodiscard]] proto::Known<ContextObject> find_context_or_current(CUcontext handle);

// The calling thread's stack. `current_context` is null where it is empty; the handle may be stale.
[[nodiscard]] CUcontext current_context();
// Whose is what a call makes: the current context, or the primary one where that is green.
[[nodiscard]] CUcontext owning_context();
[[nodiscard]] CUcontext owning_context(CUcontext context);
void set_current_context(CUcontext handle);  // replaces the top; null pops it
[[nodiscard]] CUresult push_context(CUcontext handle);
[[nodiscard]] CUresult pop_context(CUcontext* handle);

// The calling thread runs host functions, which must make no CUDA call: no context can become current in it.
void forbid_calls();
[[nodiscard]] bool are_calls_forbidden();

// For every call that works in a context. CUDA_ERROR_NOT_PERMITTED: in a host function. CUDA_ERROR_INVALID_CONTEXT: none is current, or a primary
// context that was never retained; CUDA_ERROR_CONTEXT_IS_DESTROYED: it has ended.
[[nodiscard]] CUresult require_context(proto::Known<ContextObject>& context);
[[nodiscard]] CUresult require_context();

// The device of the current context, or the session's.
[[nodiscard]] CUdevice current_device();

// The handle stays the same for the life of the process, retained or not.
[[nodiscard]] CUcontext primary_context(CUdevice device);
[[nodiscard]] CUresult retain_primary_context(CUdevice device, CUcontext& handle);
[[nodiscard]] CUresult release_primary_context(CUdevice device);
[[nodiscard]] CUresult reset_primary_context(CUdevice device);

// Created contexts: `create_context` makes it current. `part`: which ends with it.
[[nodiscard]] CUresult create_context(CUdevice device, unsigned flags, CUcontext& handle, proto::GreenContextId part = {});
[[nodiscard]] CUresult destroy_context(CUcontext handle);

// The handle of a green context as a CUcontext. It ends with the green context alone, and in no thread's stack is anything changed.
[[nodiscard]] CUresult create_green_context(CUdevice device, proto::GreenContextId green, CUcontext& handle, std::uint64_t& unique_id);
void destroy_green_context(CUcontext handle);

}  // namespace mpsshim::interposer
