// SPDX-License-Identifier: Apache-2.0
// The few things that the local half (context stack, export tables) asks of the forwarding half. Implemented in forward/.
// Called by any application thread, after cuInit. None of them throws anything but std::bad_alloc; entry.hpp turns that into a CUresult.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gen/cuda_api.hpp"

namespace mpsshim::interposer::forward {

// Opens the session with the broker if there is none; the session's sticky error if it has ended. In local/session_hook.cpp.
[[nodiscard]] CUresult ensure_session();

// Waits until all work of this process is done (every stream of the session, the NULL stream included) and returns the asynchronous or
// sticky error, if there is one. Without a session there is no work: CUDA_SUCCESS.
[[nodiscard]] CUresult synchronize_all_streams();

// The same for cuCtxSynchronize, which is refused while a stream captures. Of a green context: what its own streams have.
[[nodiscard]] CUresult synchronize_context(CUcontext context);

// cuStreamGetId without its checks: never 0 for a live stream, never reused in a process. 0, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are
// resolved for the calling thread. cuBLAS orders its workspace between streams by these numbers. 0 if the handle is not a live stream.
[[nodiscard]] std::uint64_t unique_stream_id(CUstream stream);

// Calls `visit(user, function)` for every kernel of a module (or of a library's module) and stores how many there were.
[[nodiscard]] CUresult visit_functions(CUmodule module, void (*visit)(void* user, CUfunction function), void* user, std::uint32_t& count);

// cuCtxCreate_v3 with a number of multiprocessors: that many, rounded up to whole parts (proto/provision.hpp), and the context is current. Where the
// process has no more than that, it is a context like any other. CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY: with a driver before CUDA 12.4.
[[nodiscard]] CUresult create_context_with_part(CUdevice device, unsigned flags, unsigned multiprocessors, CUcontext& context);
// How many multiprocessors a context may use that was made so, or is a green context's; 0: all that the process has.
[[nodiscard]] unsigned multiprocessors_of_context(CUcontext context);

// cuCtxSetLimit beyond what the shared context has. CUDA_ERROR_NOT_SUPPORTED: more than one client may ask for.
[[nodiscard]] CUresult raise_context_limit(CUlimit limit, std::size_t value);

// cuCtxSetLimit of CU_LIMIT_PERSISTING_L2_CACHE_SIZE: the session's wish from now on, until that context ends.
[[nodiscard]] CUresult set_persisting_cache(CUcontext context, std::size_t bytes);

// The primary context becomes active again after it had ended: what belongs to the process and lives in a context (libraries' variables) is as
// after loading.
[[nodiscard]] CUresult renew_process_objects();

// A context ends (cuCtxDestroy, cuDevicePrimaryCtxReset, last cuDevicePrimaryCtxRelease): waits for its work, then releases what was created
// while it was current: streams, events, memory, modules. Libraries and kernels stay, they belong to the process.
void release_context_objects(CUcontext context);

}  // namespace mpsshim::interposer::forward
