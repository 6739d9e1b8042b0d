// SPDX-License-Identifier: Apache-2.0
// NVIDIA's variables of MPS that somebody has set and that nothing here enforces: whoever relies on one is told, by the program and in the broker's
// log. Values that ask for nothing are no reason for a line.
#pragma once

#include <string>
#include <string_view>

namespace mpsshim::proto {

[[nodiscard]] constexpr bool is_enforced(std::string_view name, std::string_view value) {
  if (name == "CUDA_MPS_PIPE_DIRECTORY" || name == "CUDA_MPS_LOG_DIRECTORY" || name == "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" ||
      name == "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" || name == "CUDA_MPS_CLIENT_PRIORITY" || name == "CUDA_MPS_SM_PARTITION" ||
      name == "CUDA_MPS_PROTOCOL_VERSION" || name == "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING")
    return true;
  return value.empty() || value == "0";
}

// `next` gives "NAME=VALUE" one after the other, and an empty view at the end. "A, B", or "".
template <typename Next>
[[nodiscard]] std::string unenforced_variables(Next next) {
  std::string names;
  for (std::string_view entry = next(); !entry.empty(); entry = next()) {
    const std::size_t equals = entry.find('=');
    const std::string_view name = entry.substr(0, equals);
    if (!name.starts_with("CUDA_MPS_") || equals == std::string_view::npos || is_enforced(name, entry.substr(equals + 1))) continue;
    if (!names.empty()) names += ", ";
    names += name;
  }
  return names;
}

}  // namespace mpsshim::proto
