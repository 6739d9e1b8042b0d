// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/modules/jit_options.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace mpsshim::cpudriver {

CUresult JitOptions::read(unsigned count, const CUjit_option* options, void** values, JitOptions& result) {
  if (count != 0 && (options == nullptr || values == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    switch (options[i]) {
      case CU_JIT_INFO_LOG_BUFFER:
        result.info_.buffer = static_cast<char*>(values[i]);
        break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        result.info_.capacity = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(values[i]));
        result.info_.size_value = &values[i];
        break;
      case CU_JIT_ERROR_LOG_BUFFER:
        result.error_.buffer = static_cast<char*>(values[i]);
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        result.error_.capacity = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(values[i]));
        result.error_.size_value = &values[i];
        break;
      default:
        if (options[i] < 0 || options[i] >= CU_JIT_NUM_OPTIONS) return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

void JitOptions::Log::write(const std::string& text) const {
  std::size_t written = 0;
  if (buffer != nullptr && capacity != 0) {
    written = std::min(text.size(), capacity - 1);
    std::memcpy(buffer, text.data(), written);
    buffer[written] = '\0';
  }
  if (size_value != nullptr) *size_value = reinterpret_cast<void*>(static_cast<std::uintptr_t>(written));
}

void JitOptions::report_error(const std::string& sentence) const {
  info_.write("");
  error_.write(sentence);
  if (error_.buffer == nullptr) std::fprintf(stderr, "cuda_cpu: %s\n", sentence.c_str());
}

void JitOptions::clear_logs() const {
  info_.write("");
  error_.write("");
}

}  // namespace mpsshim::cpudriver
