// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/contexts.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>

#include "interposer/channel/wait.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer {

namespace {

using ContextTable = proto::HandleTable<proto::HandleKind::context, ContextObject>;

// Never destroyed: programs call from exit handlers.
ContextTable& table() {
  static ContextTable& contexts = *new ContextTable();
  return contexts;
}

Mutex& primary_mutex() {
  static Mutex& mutex = *new Mutex();
  return mutex;
}

// Held while a primary context comes to life or ends: who retains it meanwhile gets the next one, whole. Recursive, since destructors of what a
// program has stored in a context may ask for it.
std::recursive_mutex& life_mutex() {
  static std::recursive_mutex& mutex = *new std::recursive_mutex();
  return mutex;
}

std::array<std::atomic<CUcontext>, proto::kMaxDevices> primaries{};
std::atomic<std::uint64_t> next_unique_id{1};

// Handles, bottom first. Plain memory without a destructor: threads end in any order relative to exit handlers. Deep stacks go to the heap,
// and back as soon as they are empty.
struct ContextStack {
  static constexpr std::size_t kInline = 16;
  CUcontext inline_entries[kInline];
  CUcontext* heap_entries;
  std::size_t heap_capacity;
  std::size_t size;

  CUcontext* entries() { return heap_entries != nullptr ? heap_entries : inline_entries; }

  bool reserve_one() {
    const std::size_t capacity = heap_entries != nullptr ? heap_capacity : kInline;
    if (size < capacity) return true;
    auto* grown = static_cast<CUcontext*>(std::malloc(2 * capacity * sizeof(CUcontext)));
    if (grown == nullptr) return false;
    std::copy_n(entries(), size, grown);
    std::free(heap_entries);
    heap_entries = grown;
    heap_capacity = 2 * capacity;
    return true;
  }
  void drop_top() {
    if (--size != 0) return;
    std::free(heap_entries);
    heap_entries = nullptr;
  }
};
thread_local constinit ContextStack stack{};
thread_local constinit bool calls_forbidden = false;

// How the calling thread waits for the GPU: as its current context says. Looked up when a wait has to wait.
WaitStyle wait_style() {
  const auto context = find_context(current_context());
  if (!context) return WaitStyle::automatic;
  switch (context->flags.load(std::memory_order_relaxed) & CU_CTX_SCHED_MASK) {
    case CU_CTX_SCHED_SPIN: return WaitStyle::spin;
    case CU_CTX_SCHED_YIELD: return WaitStyle::yield;
    case CU_CTX_SCHED_BLOCKING_SYNC: return WaitStyle::sleep;
    default: return WaitStyle::automatic;
  }
}

ContextObject* primary_object(CUdevice device) { return find_context(primary_context(device)).get(); }

// What ends with a context. Destructors of stored values first: they may still use the context.
void end_context(ContextObject& context, CUcontext handle) {
  context.storage.clear(handle);
  forward::release_context_objects(handle);
}

void restore_defaults(ContextObject& context) {
  const proto::DeviceFacts* facts = device_facts(context.device);
  for (std::size_t i = 0; i < context.limits.size(); ++i) context.limits[i].store(facts->context_limit[i], std::memory_order_relaxed);
  context.cache_config.store(CU_FUNC_CACHE_PREFER_NONE, std::memory_order_relaxed);
  context.shared_config.store(CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE, std::memory_order_relaxed);
}

}  // namespace

ContextObject::ContextObject(CUdevice on_device, bool is_primary, unsigned initial_flags, proto::GreenContextId of_green,
                             proto::GreenContextId own_part)
    : device(on_device),
      primary(is_primary),
      green(of_green),
      part(own_part),
      unique_id(next_unique_id.fetch_add(1, std::memory_order_relaxed)),
      flags(initial_flags) {
  restore_defaults(*this);
  Wait::set_style_source(&wait_style);
}

bool valid_context_flags(unsigned flags) {
  const unsigned scheduling = flags & CU_CTX_SCHED_MASK;
  const bool one_of_them = scheduling == CU_CTX_SCHED_AUTO || scheduling == CU_CTX_SCHED_SPIN || scheduling == CU_CTX_SCHED_YIELD ||
                           scheduling == CU_CTX_SCHED_BLOCKING_SYNC;
  return one_of_them && (flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) == 0;
}

proto::Known<ContextObject> find_context(CUcontext handle) { return table().find(to_id(handle)); }

proto::Known<ContextObject> find_context_or_current(CUcontext handle) { return find_context(handle != nullptr ? handle : current_context()); }

CUcontext current_context() { return stack.size == 0 ? nullptr : stack.entries()[stack.size - 1]; }

CUcontext owning_context(CUcontext context) {
  const auto found = find_context(context);
  return found && found->green != proto::GreenContextId{} ? primary_context(found->device) : context;
}
CUcontext owning_context() { return owning_context(current_context()); }

void forbid_calls() { calls_forbidden = true; }
bool are_calls_forbidden() { return calls_forbidden; }

CUresult push_context(CUcontext handle) {
  if (calls_forbidden) return CUDA_ERROR_NOT_PERMITTED;
  if (!stack.reserve_one()) return CUDA_ERROR_OUT_OF_MEMORY;
  stack.entries()[stack.size++] = handle;
  return CUDA_SUCCESS;
}

CUresult pop_context(CUcontext* handle) {
  if (stack.size == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle != nullptr) *handle = current_context();
  stack.drop_top();
  return CUDA_SUCCESS;
}

void set_current_context(CUcontext handle) {
  if (handle == nullptr) {
    if (stack.size != 0) stack.drop_top();
  } else if (stack.size != 0) {
    stack.entries()[stack.size - 1] = handle;
  } else {
    stack.inline_entries[stack.size++] = handle;  // an empty stack has no heap part
  }
}

CUresult require_context(proto::Known<ContextObject>& context) {
  const CUcontext handle = current_context();
  if (handle == nullptr) return calls_forbidden ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_CONTEXT;
  context = find_context(handle);
  if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (!context->primary || context->retain_count.load(std::memory_order_acquire) != 0) return CUDA_SUCCESS;
  return context->was_active.load(std::memory_order_relaxed) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult require_context() {
  proto::Known<ContextObject> ignored;
  return require_context(ignored);
}

CUdevice current_device() {
  const auto context = find_context(current_context());
  return context ? context->device : session_device();
}

CUcontext primary_context(CUdevice device) {
  auto& slot = primaries[static_cast<std::size_t>(device)];
  CUcontext handle = slot.load(std::memory_order_acquire);
  if (handle != nullptr) return handle;
  const std::lock_guard lock(primary_mutex());
  handle = slot.load(std::memory_order_relaxed);
  if (handle == nullptr) {
    handle = to_handle(table().add(std::make_unique<ContextObject>(device, true, CU_CTX_SCHED_AUTO)));
    slot.store(handle, std::memory_order_release);
  }
  return handle;
}

CUresult retain_primary_context(CUdevice device, CUcontext& handle) {
  const ActingSession acting(session_of(device));
  if (const CUresult error = forward::ensure_session(); error != CUDA_SUCCESS) return error;
  handle = primary_context(device);
  ContextObject* context = primary_object(device);
  const std::lock_guard lock(life_mutex());
  if (context->was_active.load(std::memory_order_relaxed) && context->retain_count.load(std::memory_order_relaxed) == 0) {
    if (const CUresult error = forward::renew_process_objects(); error != CUDA_SUCCESS) return error;
  }
  context->was_active.store(true, std::memory_order_relaxed);
  context->retain_count.fetch_add(1, std::memory_order_acq_rel);
  return CUDA_SUCCESS;
}

CUresult release_primary_context(CUdevice device) {
  ContextObject* context = primary_object(device);
  const std::lock_guard lock(life_mutex());
  const std::uint32_t count = context->retain_count.load(std::memory_order_relaxed);
  if (count == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (count > 1) {
    context->retain_count.store(count - 1, std::memory_order_release);
    return CUDA_SUCCESS;
  }
  return reset_primary_context(device);
}

CUresult reset_primary_context(CUdevice device) {
  ContextObject* context = primary_object(device);
  const std::lock_guard lock(life_mutex());
  const bool was_active = context->retain_count.load(std::memory_order_acquire) != 0;
  if (was_active) {
    const ActingSession acting(session_of(device));
    end_context(*context, primary_context(device));
  }
  context->retain_count.store(0, std::memory_order_release);
  context->flags.store(CU_CTX_SCHED_AUTO, std::memory_order_relaxed);
  restore_defaults(*context);
  return CUDA_SUCCESS;
}

CUresult create_context(CUdevice device, unsigned flags, CUcontext& handle, proto::GreenContextId part) {
  const ActingSession acting(session_of(device));
  if (const CUresult error = forward::ensure_session(); error != CUDA_SUCCESS) return error;
  const ContextId id = table().add(std::make_unique<ContextObject>(device, false, flags, proto::GreenContextId{}, part));
  if (!id.has_kind()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (const CUresult error = push_context(to_handle(id)); error != CUDA_SUCCESS) {
    (void)table().take(id);
    return error;
  }
  handle = to_handle(id);
  return CUDA_SUCCESS;
}

// In other threads the handle stays current and is found to be stale there.
CUresult destroy_context(CUcontext handle) {
  const auto context = find_context(handle);
  if (!context || context->primary || context->green != proto::GreenContextId{}) return CUDA_ERROR_INVALID_CONTEXT;
  end_context(*context, handle);
  if (current_context() == handle) set_current_context(nullptr);
  (void)table().take(to_id(handle));
  return CUDA_SUCCESS;
}

CUresult create_green_context(CUdevice device, proto::GreenContextId green, CUcontext& handle, std::uint64_t& unique_id) {
  auto object = std::make_unique<ContextObject>(device, false, primary_object(device)->flags.load(std::memory_order_relaxed), green);
  unique_id = object->unique_id;
  const ContextId id = table().add(std::move(object));
  if (!id.has_kind()) return CUDA_ERROR_OUT_OF_MEMORY;
  handle = to_handle(id);
  return CUDA_SUCCESS;
}

void destroy_green_context(CUcontext handle) {
  const auto context = find_context(handle);
  if (!context) return;
  context->storage.clear(handle);
  (void)table().take(to_id(handle));
}

}  // namespace mpsshim::interposer
