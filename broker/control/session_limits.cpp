// SPDX-License-Identifier: Apache-2.0
// What a session may hold, counted whenever it asks for more.
#include "broker/control/session_manager.hpp"

#include <fmt/format.h>

namespace mpsshim::broker::control {

bool SessionManager::may_hold(const Session& session, std::uint64_t more_bytes, std::string& why) const {
  const ResourceLimits& limits = limits_.resources;
  const ImageStore::Holding images = images_.held_by(session.id);
  const std::size_t descriptors = session.segments.all().size() + images.count;
  const std::uint64_t bytes = session.segments.total_bytes() + images.bytes;
  std::size_t all_descriptors = images_.count();
  std::uint64_t all_bytes = images_.total_bytes();
  for (const auto& [id, other] : sessions_) {
    all_descriptors += other.segments.all().size();
    all_bytes += other.segments.total_bytes();
  }
  const auto exceeds = [more_bytes](std::uint64_t held, std::uint64_t limit) { return held > limit || more_bytes > limit - held; };
  if (descriptors >= limits.client_descriptors) {
    why = fmt::format("its segments and images take {} descriptors, which is the limit for one client (ulimit -n)", descriptors);
  } else if (all_descriptors >= limits.all_descriptors) {
    why = fmt::format("all clients' segments and images take {} descriptors, which is the limit (ulimit -n)", all_descriptors);
  } else if (exceeds(bytes, limits.client_host_bytes)) {
    why = fmt::format("it has {} MiB of host memory, and a client may have {} MiB (--client-host-mib)", bytes >> 20, limits.client_host_bytes >> 20);
  } else if (exceeds(all_bytes, limits.all_host_bytes)) {
    why = fmt::format("all clients have {} MiB of host memory, and may have {} MiB (--host-mib)", all_bytes >> 20, limits.all_host_bytes >> 20);
  } else {
    return true;
  }
  return false;
}

}  // namespace mpsshim::broker::control
