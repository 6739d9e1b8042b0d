// SPDX-License-Identifier: Apache-2.0
// The options of cuModuleLoadDataEx and cuLibraryLoadData that have a meaning here: where the compiler's log goes. The others tune code
// generation; the executor compiles with the driver's defaults (CUDA Driver API manual, CUjit_option).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
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
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: set_size(error_, values[i]); break;
        case CU_JIT_INFO_LOG_BUFFER: info_.text = static_cast<char*>(values[i]); break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: set_size(info_, values[i]); break;
        default: break;
      }
    }
  }

  // After the load: what the linker said about an error, and an empty information log. Sizes come back as the bytes written.
  void report(std::string_view error_log, std::string_view info_log = {}) {
    said_ = error_log;
    fill(error_, error_log);
    fill(info_, info_log);
  }
  // What was reported last of an error, whether the program has a log or not.
  [[nodiscard]] const std::string& said() const { return said_; }

 private:
  struct Log {
    char* text = nullptr;
    void** size = nullptr;  // in: bytes of the buffer; out: bytes written
    std::uint32_t capacity = 0;
  };

  // Read at once: a linker reports more than once.
  static void set_size(Log& log, void*& value) {
    log.size = &value;
    log.capacity = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(value));
  }

  static void fill(const Log& log, std::string_view content) {
    if (log.size == nullptr) return;
    std::size_t written = 0;
    if (log.text != nullptr && log.capacity != 0) {
      written = std::min<std::size_t>(content.size(), log.capacity - 1);
      std::memcpy(log.text, content.data(), written);
      log.text[written] = '\0';
    }
    *log.size = reinterpret_cast<void*>(written);  // NOLINT(performance-no-int-to-ptr)
  }

  Log error_;
  Log info_;
  std::string said_;
};

}  // namespace mpsshim::interposer::forward
