// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/resource_limits.hpp"

#include <algorithm>
#include <fstream>

#include <sys/resource.h>
#include <unistd.h>

namespace mpsshim::broker::control {

namespace {

constexpr std::uint64_t kLeastHostBytes = 1ull << 30;

// The machine's, or what the control group leaves of it.
std::uint64_t memory_bytes() {
  std::uint64_t bytes = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::uint64_t limit = 0;
    if (std::ifstream(path) >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

}  // namespace

ResourceLimits limits_of_this_machine() {
  rlimit files{};
  const std::size_t descriptors = getrlimit(RLIMIT_NOFILE, &files) == 0 ? static_cast<std::size_t>(files.rlim_cur) : 1'024;
  const std::uint64_t memory = memory_bytes();
  ResourceLimits limits;
  limits.client_descriptors = descriptors / 6;
  limits.all_descriptors = descriptors / 3;
  limits.connections = descriptors / 10;  // two descriptors each; chunks get a quarter (executor/memory_map.cpp)
  limits.client_host_bytes = std::max(memory / 2, kLeastHostBytes);
  limits.all_host_bytes = std::max(memory / 4 * 3, kLeastHostBytes);
  return limits;
}

void share_among_users(ResourceLimits& limits, std::size_t max_clients) {
  const auto settle = [](auto& limit, auto all) {
    if (limit == 0) limit = std::max<decltype(all)>(all / 2, 1);
  };
  settle(limits.user.sessions, max_clients);
  settle(limits.user.connections, limits.connections);
  settle(limits.user.descriptors, limits.all_descriptors);
  settle(limits.user.host_bytes, limits.all_host_bytes);
}

}  // namespace mpsshim::broker::control
