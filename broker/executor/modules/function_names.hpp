// SPDX-License-Identifier: Apache-2.0
// The executor's half of FunctionNames (broker/progress_table.hpp): gives each kernel name one place in the memory that outlives this process,
// so that the control process can name the kernels that were under way when it ended.
// Owned by ExecutorParts. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "broker/progress_table.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class FunctionNameTable {
 public:
  explicit FunctionNameTable(FunctionNames& names) : names_(names) {}
  FunctionNameTable(const FunctionNameTable&) = delete;

  // Where the name stands from now on; 0, the unknown one, once the memory is used up.
  [[nodiscard]] std::uint32_t add(const std::string& name);

 private:
  FunctionNames& names_;
  Mutex mutex_;
  std::uint32_t used_ GUARDED_BY(mutex_) = 1;  // the first byte is the unknown name's end
  std::unordered_map<std::string, std::uint32_t> known_ GUARDED_BY(mutex_);
};

}  // namespace mpsshim::broker
