// SPDX-License-Identifier: Apache-2.0
// What the answered slots of the undocumented tables do. Called by the CUDA runtime and NVIDIA's libraries from any thread; signatures are
// those observed at the driver's boundary. None throws.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gen/cuda_api.hpp"
#include "interposer/local/context_storage.hpp"

namespace mpsshim::interposer::slots {

// CUDART_INTERFACE 2: the primary context's handle, neither retained nor made current.
CUresult get_primary_context(CUcontext* context, CUdevice device);

// TOOLS_RUNTIME_CALLBACK_HOOKS 2 and 6: one flag for each runtime function and for each domain, by which a tool asks to be called. All zero.
void runtime_call_flags(const void** flags, std::size_t* count);
void domain_flags(const void** flags, std::size_t* count);

// TOOLS_TLS 2: the current context, or null; callers use *context whatever is returned.
CUresult get_tls_context(void** context);

// CONTEXT_LOCAL_STORAGE: a pointer by (context, key). Null and -1 stand for the current context.
CUresult storage_put(CUcontext context, void* key, void* value, ContextStorage::Destructor destructor);
CUresult storage_delete(CUcontext context, void* key);
CUresult storage_get(void** value, CUcontext context, void* key);

// CONTEXT_CHECKS 2 and 3: *kind = 0, an ordinary context; nothing is written through the third argument.
CUresult check_context(CUcontext context, std::uint32_t* kind, const void** wrapped);
std::uint32_t check_flags();

// INTEGRITY_CHECK 1 (integrity.hpp).
CUresult check_integrity(std::uint32_t version, std::uint64_t unix_seconds, std::uint64_t* answer);

// ToolsContext 4, 51 and 39: an id for a context; an object for a stream, which is the stream's handle; a stream's unique id, by which cuBLAS
// decides whether its workspace was last used in another stream. An id that comes twice would be a data race between streams.
CUresult tools_context_id(CUcontext context, std::uint64_t* id);
CUresult tools_stream_object(CUcontext context, CUstream stream, void** object);
CUresult tools_stream_id(CUcontext context, void* object, std::uint64_t* id);

// 1734dc26 4: an array that cuBLASLt looks through; empty.
CUresult empty_array(void** array, std::size_t* count);

// ToolsModule 7: calls back for each function of a module and returns their number.
std::uint32_t visit_module_functions(CUcontext context, CUmodule module, void (*visit)(void*, CUfunction), void* user);

// Addresses that go into the integrity digest (export_tables.cpp).
[[nodiscard]] std::uint64_t runtime_table_address();
[[nodiscard]] std::uint64_t integrity_table_address();

}  // namespace mpsshim::interposer::slots
