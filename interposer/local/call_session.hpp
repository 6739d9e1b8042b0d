// SPDX-License-Identifier: Apache-2.0
// Which session of the process a call is meant for, told from its arguments, once there are several (ActingSession). What it works on in a stream is
// in that stream's order: it is the stream's session, which is the current context's for the NULL stream and the thread's own. Of a call without a
// stream another handle says it: its realm is the number of the session that has made it. Where there is none, a device address does, by the range
// that it lies in, or a context; then host memory that a session has made; else it is the current context's. Kernels and libraries belong to the
// process and say nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "gen/cuda_api.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer {

struct SessionHint {
  enum class Kind : std::uint8_t { none, stream, handle, address, context, pointer };
  Kind kind = Kind::none;
  std::uint64_t value = 0;
};

[[nodiscard]] std::uint32_t session_of_call(std::span<const SessionHint> hints);
// Of the current context.
[[nodiscard]] std::uint32_t current_session();

namespace hints {

using Kind = SessionHint::Kind;

template <typename T>
inline constexpr bool kIsHandle =
    std::is_same_v<T, CUevent> || std::is_same_v<T, CUmodule> || std::is_same_v<T, CUfunction> || std::is_same_v<T, CUgraph> ||
    std::is_same_v<T, CUgraphNode> || std::is_same_v<T, CUgraphExec> || std::is_same_v<T, CUarray> || std::is_same_v<T, CUmipmappedArray> ||
    std::is_same_v<T, CUmemoryPool> || std::is_same_v<T, CUexternalMemory> || std::is_same_v<T, CUlinkState> || std::is_same_v<T, CUtexref> ||
    std::is_same_v<T, CUsurfref> || std::is_same_v<T, CUgreenCtx>;

inline SessionHint of_copy(CUarray destination, CUarray source, CUdeviceptr to, CUdeviceptr from) {
  if (destination != nullptr) return {Kind::handle, reinterpret_cast<std::uintptr_t>(destination)};
  if (source != nullptr) return {Kind::handle, reinterpret_cast<std::uintptr_t>(source)};
  return {Kind::address, to != 0 ? to : from};
}

template <typename T>
[[nodiscard]] SessionHint of(const T& argument) {
  if constexpr (std::is_same_v<T, CUstream>) {
    return {Kind::stream, reinterpret_cast<std::uintptr_t>(argument)};
  } else if constexpr (kIsHandle<T>) {
    return {Kind::handle, reinterpret_cast<std::uintptr_t>(argument)};
  } else if constexpr (std::is_same_v<T, CUcontext>) {
    return {Kind::context, reinterpret_cast<std::uintptr_t>(argument)};
  } else if constexpr (std::is_same_v<T, CUdeviceptr>) {
    return {Kind::address, argument};  // and handles of memory, which say more about themselves
  } else if constexpr (std::is_same_v<T, void*> || std::is_same_v<T, const void*>) {
    return {Kind::pointer, reinterpret_cast<std::uintptr_t>(argument)};
  } else if constexpr (std::is_same_v<T, const CUlaunchConfig*>) {
    return argument == nullptr ? SessionHint{} : SessionHint{Kind::stream, reinterpret_cast<std::uintptr_t>(argument->hStream)};
  } else if constexpr (std::is_same_v<T, const CUDA_MEMCPY2D*> || std::is_same_v<T, const CUDA_MEMCPY3D*> ||
                       std::is_same_v<T, const CUDA_MEMCPY3D_PEER*>) {
    return argument == nullptr ? SessionHint{} : of_copy(argument->dstArray, argument->srcArray, argument->dstDevice, argument->srcDevice);
  } else {
    return {};
  }
}

}  // namespace hints

template <typename... Arguments>
[[nodiscard]] std::uint32_t session_for(const Arguments&... arguments) {
  const std::array<SessionHint, sizeof...(Arguments) + 1> all{hints::of(arguments)..., SessionHint{}};
  return session_of_call(all);
}

}  // namespace mpsshim::interposer
