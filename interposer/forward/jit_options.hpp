// SPDX-License-Identifier: Apache-2.0
// The options of cuModuleLoadDataEx and cuLibraryLoadData that have a meaning here: where the compiler's log goes. The others tune code
// generation; the executor compiles with the driver's defaults (CUDA Driver API manual, CUjit_option).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "gen/cuda_api.hpp"

namespace mpsshim::interposer::forward {

class JitOptions {
 public:
  JitOptions() = default;
  JitOptions(unsigned int count, const CUjit_option* options, void** values) {
    for (unsigned int i = 0; i < count; ++i) {
      switch (options[i]) {
        case CU_JIT_ERROR_LOG_BUFFER: error_.text = static_cast<char*>(values[i]); break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: error_.size = &values[i]; break;
        case CU_JIT_INFO_LOG_BUFFER: info_.text = static_cast<char*>(values[i]); break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: info_.size = &values[i]; break;
        default: break;
      }
    }
  }

  // After the load: what the linker said about an error, and an empty information log. Sizes come back as the bytes written.
  void report(std::string_view error_log) {
    fill(error_, error_log);
    fill(info_, {});
  }

 private:
  struct Log {
    char* text = nullptr;
    void** size = nullptr;  // in: bytes of the buffer; out: bytes written
  };

  static void fill(const Log& log, std::string_view content) {
    if (log.size == nullptr) return;
    const auto capacity = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(*log.size));
    std::size_t written = 0;
    if (log.text != nullptr && capacity != 0) {
      written = std::min<std::size_t>(content.size(), capacity - 1);
      std::memcpy(log.text, content.data(), written);
      log.text[written] = '\0';
    }
    *log.size = reinterpret_cast<void*>(written);  // NOLINT(performance-no-int-to-ptr)
  }

  Log error_;
  Log info_;
};

}  // namespace mpsshim::interposer::forward
