// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/function_names.hpp"

#include <cstring>

namespace mpsshim::broker {

std::uint32_t FunctionNameTable::add(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (const auto known = known_.find(name); known != known_.end()) return known->second;
  const std::size_t bytes = name.size() + 1;
  if (bytes > kFunctionNamesBytes - used_) return 0;
  const std::uint32_t offset = used_;
  std::memcpy(names_.text + offset, name.c_str(), bytes);
  used_ += static_cast<std::uint32_t>(bytes);
  known_.emplace(name, offset);
  return offset;
}

}  // namespace mpsshim::broker
