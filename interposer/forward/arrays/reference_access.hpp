// SPDX-License-Identifier: Apache-2.0
// How the functions of reference_*api.cpp begin: a context, then the object behind the handle.
#pragma once

#include <mutex>

#include "interposer/forward/arrays/references.hpp"

namespace mpsshim::interposer::forward {

// CUDA_ERROR_INVALID_VALUE where the handle is none.
template <typename Handle, typename F>
CUresult with_reference_object(Handle handle, F&& f) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  Reference* reference = References::instance().resolve(handle);
  return reference != nullptr ? f(*reference) : CUDA_ERROR_INVALID_VALUE;
}

// What is set on it.
template <typename Handle, typename F>
CUresult with_reference(Handle handle, F&& f) {
  return with_reference_object(handle, [&](Reference& reference) {
    const std::lock_guard lock(reference.mutex);
    return f(static_cast<const proto::ReferenceSetRecord&>(reference.set));
  });
}

}  // namespace mpsshim::interposer::forward
