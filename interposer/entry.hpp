// SPDX-License-Identifier: Apache-2.0
// What stands between an exported function and its implementation: gen/exports.cpp calls entry() once for each of them.
//
// The one case that must be fast is a process that has a broker and has called cuInit: one atomic load. Everything else is decided by
// decide(), out of line. Nothing leaves an exported function: exceptions become CUresults; only the forced unwinding of pthread_cancel passes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <variant>

#include <cxxabi.h>

#include "gen/api_ids.hpp"
#include "gen/cuda_api.hpp"
#include "interposer/cancellation.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/call_session.hpp"
#include "interposer/passthrough.hpp"
#include "interposer/settle.hpp"
#include "interposer/trace.hpp"
#include "proto/trace.hpp"

#define MPSSHIM_EXPORT __attribute__((visibility("default")))

namespace mpsshim::interposer {

struct Decision {
  enum class Way : std::uint8_t { implementation, real_driver, answer };
  Way way;
  bool traced;
  CUresult answer;  // with Way::answer
};

// How a call of this function is answered now. Settles the process if need be.
[[nodiscard]] Decision decide(ApiId id);

// CUDA_ERROR_NOT_SUPPORTED; the first time for each function with a line under MPSSHIM_DEBUG=unsupported.
CUresult unsupported(ApiId id);

// The real driver lacks a function that this library exports.
CUresult missing_in_real_driver(ApiId id);

// While one lives, the calling thread's NULL stream is its own: set by exported _ptds variants that take no stream argument.
class PerThreadDefaultStream {
 public:
  PerThreadDefaultStream() : outer_(active_) { active_ = true; }
  ~PerThreadDefaultStream() { active_ = outer_; }
  PerThreadDefaultStream(const PerThreadDefaultStream&) = delete;
  PerThreadDefaultStream& operator=(const PerThreadDefaultStream&) = delete;
  [[nodiscard]] static bool active() { return active_; }

 private:
  bool outer_;
  static inline thread_local bool active_ = false;
};

// For the log of failed calls: local/error_log.hpp.
[[gnu::cold]] void note_error(ApiId id, CUresult result);

// What the exported _ptsz variants make of their stream argument.
[[nodiscard]] inline CUstream per_thread_stream(CUstream stream) { return stream == nullptr ? CU_STREAM_PER_THREAD : stream; }

// One argument as MPSSHIM_DEBUG=calls shows it.
struct TracedArgument {
  std::uint64_t value;
  bool is_pointer;
};

template <typename T>
[[nodiscard]] TracedArgument traced(const T& argument) {
  if constexpr (std::is_pointer_v<T>) {
    return {reinterpret_cast<std::uintptr_t>(argument), true};
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    return {static_cast<std::uint64_t>(argument), false};
  } else {
    return {0, false};
  }
}
void trace_call(ApiId id, CUresult result, const TracedArgument* arguments, std::size_t count);

// Calls so short that ten nanoseconds count, whose ordinary way has no cancellation point (cancellation.hpp).
template <ApiId Id>
inline constexpr bool kIsBrief = Id == ApiId::cuLaunchKernel || Id == ApiId::cuLaunchKernelEx || Id == ApiId::cuEventRecord ||
                                 Id == ApiId::cuEventQuery || Id == ApiId::cuStreamQuery || Id == ApiId::cuStreamWaitEvent ||
                                 Id == ApiId::cuCtxGetCurrent || Id == ApiId::cuCtxSetCurrent || Id == ApiId::cuCtxGetDevice;

template <typename... Parameters>
[[gnu::always_inline]] inline CUresult guarded(CUresult (*function)(Parameters...), std::type_identity_t<Parameters>... arguments) {
  try {
    return function(arguments...);
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (abi::__forced_unwind&) {
    throw;  // the thread is being cancelled: swallowing this ends the program
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

// The same, for the session that the call is meant for; out of line, since most processes have one session and launches count every instruction.
template <typename... Parameters>
[[gnu::noinline]] CUresult in_its_session(CUresult (*function)(Parameters...), std::type_identity_t<Parameters>... arguments) {
  return guarded(
      +[](CUresult (*called)(Parameters...), Parameters... given) {
        const ActingSession acting(session_for(given...));
        return called(given...);
      },
      function, arguments...);
}
// What an exported function's implementation is called by.
template <typename... Parameters>
[[gnu::always_inline]] inline CUresult called(CUresult (*function)(Parameters...), std::type_identity_t<Parameters>... arguments) {
  if (has_several_sessions()) [[unlikely]]
    return in_its_session(function, arguments...);
  return guarded(function, arguments...);
}

// The implementation of today's variant, for an older one whose arguments have fewer bits.
template <auto Implementation, typename... Narrower>
CUresult widened(Narrower... arguments) {
  return Implementation(arguments...);
}

// Every call that is not the fast case.
template <typename... Parameters>
[[gnu::noinline]] CUresult decided(ApiId id, CUresult (CUDAAPI* DriverTable::*real)(Parameters...), CUresult (*implementation)(Parameters...),
                                   std::type_identity_t<Parameters>... arguments) {
  const Decision decision = decide(id);
  CUresult result = decision.answer;
  const std::uint64_t began_ns = proto::trace::enabled() ? proto::trace::now_ns() : 0;
  if (decision.way == Decision::Way::implementation) {
    const NoCancellation hold;
    result = called(implementation, arguments...);
    if (result != CUDA_SUCCESS) note_error(id, result);
  } else if (decision.way == Decision::Way::real_driver) {
    const auto function = real_driver().*real;
    result = function != nullptr ? function(arguments...) : missing_in_real_driver(id);
  }
  if (began_ns != 0) trace_api_call(id, result, began_ns);
  if (decision.traced) {
    const std::array<TracedArgument, sizeof...(Parameters)> shown = {traced(arguments)...};
    trace_call(id, result, shown.data(), shown.size());
  }
  return result;
}

template <ApiId Id, typename... Parameters>
CUresult entry(CUresult (CUDAAPI* DriverTable::*real)(Parameters...), CUresult (*implementation)(Parameters...),
               std::type_identity_t<Parameters>... arguments) {
  if constexpr (Id == ApiId::cuGetExportTable) {
    if (is_self_query(arguments...)) return CUDA_SUCCESS;  // before anything is settled
  }
  if (process_state() == ProcessState::ready) [[likely]] {
    [[maybe_unused]] const std::conditional_t<kIsBrief<Id>, std::monostate, NoCancellation> hold{};
    const CUresult result = called(implementation, arguments...);  // api::cuX, in forward/ or local/
    if (result != CUDA_SUCCESS) [[unlikely]]
      note_error(Id, result);
    return result;
  }
  return decided(Id, real, implementation, arguments...);
}

}  // namespace mpsshim::interposer
