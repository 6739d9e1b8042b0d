// SPDX-License-Identifier: Apache-2.0
// How every forwarded call begins: a current context (where CUDA asks for one), an open session, no pending error. And the session, by a short
// name.
#pragma once

#include "gen/cuda_api.hpp"
#include "interposer/channel/session_client.hpp"
#include "interposer/local/contexts.hpp"

namespace mpsshim::interposer::forward {

[[nodiscard]] inline SessionClient& session() { return SessionClient::instance(); }

// CUDA_ERROR_INVALID_CONTEXT without a current context; the session's sticky or asynchronous error, the latter taken.
[[nodiscard]] inline CUresult begin() {
  if (const CUresult error = require_context(); error != CUDA_SUCCESS) [[unlikely]]
    return error;
  return session().begin_call();
}

// For calls that work in no context: what they name belongs to the process and its device (virtual memory, pools). The first one may open the
// session.
[[nodiscard]] inline CUresult begin_without_context() {
  if (are_calls_forbidden()) [[unlikely]]
    return CUDA_ERROR_NOT_PERMITTED;
  return session().begin_call();
}

// For calls of a handle or an address that belongs to a context by itself: none need be current.
[[nodiscard]] inline CUresult begin_with_handle() { return current_context() == nullptr ? begin_without_context() : begin(); }

// For calls that name a stream. The NULL stream and the thread's own are those of the current context, every other stream is a handle.
[[nodiscard]] inline CUresult begin_on(CUstream stream) {
  const bool is_handle = stream != nullptr && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
  return is_handle ? begin_with_handle() : begin();
}

// Ids are handles: CUstream, CUmodule and the rest hold the 64 bits of a proto::Id and are never dereferenced.
template <typename Handle, proto::HandleKind Kind>
[[nodiscard]] Handle to_handle(proto::Id<Kind> id) {
  return reinterpret_cast<Handle>(id.value);  // NOLINT(performance-no-int-to-ptr)
}
template <proto::HandleKind Kind, typename Handle>
[[nodiscard]] proto::Id<Kind> id_of(Handle handle) {
  return proto::Id<Kind>{reinterpret_cast<std::uintptr_t>(handle)};
}

// Addresses of this process, which travel as numbers.
[[nodiscard]] inline void* host_pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

}  // namespace mpsshim::interposer::forward
