// SPDX-License-Identifier: Apache-2.0
#include "interposer/entry.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdio>

#include "interposer/log.hpp"

namespace mpsshim::interposer {

namespace {

// Functions that a program may call before cuInit, and that need no broker and no driver.
constexpr bool works_always(ApiId id) {
  switch (id) {
    case ApiId::cuGetErrorName:
    case ApiId::cuGetErrorString:
    case ApiId::cuGetProcAddress:
    case ApiId::cuGetProcAddress_v2:
    case ApiId::cuGetExportTable: return true;
    default: return false;
  }
}

constexpr Decision implementation(bool traced = false) { return {Decision::Way::implementation, traced, CUDA_SUCCESS}; }
constexpr Decision answer(CUresult result, bool traced = false) { return {Decision::Way::answer, traced, result}; }

// Tools that look at a runtime's version must go on without a GPU, and a program must hear from cuInit why it cannot.
Decision decide_without_driver(ApiId id) {
  if (works_always(id) || id == ApiId::cuDriverGetVersion) return implementation();
  if (id != ApiId::cuInit) return answer(CUDA_ERROR_NOT_INITIALIZED);
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    log_line(
        "No broker answers and no real libcuda.so.1 was found: start mpsbroker (CUDA_MPS_PIPE_DIRECTORY names its directory), or install "
        "NVIDIA's driver (MPSSHIM_REAL_DRIVER names its path).");
  }
  return answer(CUDA_ERROR_NO_DEVICE);
}

Decision decide_settled(ApiId id) {
  ProcessState state = process_state();
  if (state == ProcessState::undecided) state = settle();
  const bool traced = debug_enabled(DebugTopic::calls);
  switch (state) {
    case ProcessState::ready:
    case ProcessState::ready_traced: return implementation(traced);
    case ProcessState::attached: {
      const bool may_come_first = works_always(id) || id == ApiId::cuInit || id == ApiId::cuDriverGetVersion;
      return may_come_first ? implementation(traced) : answer(CUDA_ERROR_NOT_INITIALIZED, traced);
    }
    case ProcessState::pass_through: return {Decision::Way::real_driver, traced, CUDA_SUCCESS};
    case ProcessState::no_driver: return decide_without_driver(id);
    // The runtime asks for the version before anything else, and takes an error for an old driver: it is to hear from cuInit why.
    case ProcessState::refused: return works_always(id) || id == ApiId::cuDriverGetVersion ? implementation(traced) : answer(refusal(), traced);
    case ProcessState::forked:
      return works_always(id) || id == ApiId::cuDriverGetVersion ? implementation(traced) : answer(CUDA_ERROR_NOT_INITIALIZED, traced);
    case ProcessState::undecided: break;
  }
  return answer(CUDA_ERROR_UNKNOWN);
}

constexpr std::size_t kNameCount = kApiNames.size();

// One bit for each function that has been called although it is not supported.
std::array<std::atomic<std::uint64_t>, (kNameCount + 63) / 64> said_unsupported;

}  // namespace

Decision decide(ApiId id) {
  Decision decision = answer(CUDA_ERROR_UNKNOWN);
  struct Context {
    ApiId id;
    Decision* decision;
  } context{id, &decision};
  const CUresult result = guarded(
      +[](Context* asked) {
        *asked->decision = decide_settled(asked->id);
        return CUDA_SUCCESS;
      },
      &context);
  if (result != CUDA_SUCCESS) return answer(result);
  return decision;
}

CUresult unsupported(ApiId id) {
  if (debug_enabled(DebugTopic::unsupported)) {
    const auto found = std::lower_bound(kApiNames.begin(), kApiNames.end(), id, [](const ApiName& row, ApiId wanted) { return row.id < wanted; });
    const auto index = static_cast<std::size_t>(found - kApiNames.begin());
    const std::uint64_t bit = 1ull << (index % 64);
    if (found != kApiNames.end() && (said_unsupported[index / 64].fetch_or(bit, std::memory_order_relaxed) & bit) == 0) {
      log_line("%.*s is not supported and returns CUDA_ERROR_NOT_SUPPORTED; docs/coverage.md has the reason.", static_cast<int>(found->name.size()),
               found->name.data());
    }
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult missing_in_real_driver(ApiId id) {
  const std::string_view name = name_of(id);
  debug_line(DebugTopic::unsupported, "%.*s is not in the real driver %s, which is older than this library.", static_cast<int>(name.size()),
             name.data(), real_driver_path());
  return CUDA_ERROR_NOT_SUPPORTED;
}

void trace_call(ApiId id, CUresult result, const TracedArgument* arguments, std::size_t count) {
  std::array<char, 512> text;
  std::size_t length = 0;
  text[0] = '\0';
  for (std::size_t i = 0; i < count && length < text.size() - 1; ++i) {
    const char* separator = i == 0 ? "" : ", ";
    const int written = std::snprintf(text.data() + length, text.size() - length, arguments[i].is_pointer ? "%s0x%llx" : "%s%lld", separator,
                                      static_cast<unsigned long long>(arguments[i].value));
    if (written < 0) break;
    length += static_cast<std::size_t>(written);
  }
  const std::string_view name = name_of(id);
  log_line("%.*s(%s) = %d", static_cast<int>(name.size()), name.data(), text.data(), static_cast<int>(result));
}

}  // namespace mpsshim::interposer
