// SPDX-License-Identifier: Apache-2.0
// What clients may make the broker hold: descriptors of segments and images, and host memory behind them. One client gets a share, so
// that it cannot take what the others need; all of them together leave the broker enough to go on.
// Plain values, made once when the broker starts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mpsshim::broker::control {

// What all clients of a user may have together; 0: as much as all users.
struct UserLimits {
  std::size_t sessions = 0;
  std::size_t connections = 0;
  std::size_t descriptors = 0;
  std::uint64_t host_bytes = 0;
  std::uint64_t device_bytes = 0;  // on each device; 0: as much as there is, with several users too
};

struct ResourceLimits {
  std::size_t client_descriptors = 0;
  std::size_t all_descriptors = 0;
  std::uint64_t client_host_bytes = 0;  // segments and images, at their size: memory that is not touched yet counts
  std::uint64_t all_host_bytes = 0;
  // A process has one connection and one session for each device that it works on; a few more where it was begun anew or holds the library twice.
  std::size_t process_connections = 16;
  std::size_t process_sessions = 4;  // on each device
  std::size_t connections = 0;
  std::size_t further_leases = 32;  // of one session: enough for a device of 8 ranges in fragments
  UserLimits user;
};

// By this process's limit of open files (a sixth for one client, a third for all, the rest is for chunks and connections), and by the machine's
// memory: half of it for one client, three quarters for all, each at least 1 GiB.
[[nodiscard]] ResourceLimits limits_of_this_machine();
// Where several users are served: what `user` leaves open becomes half of what all may have, so that no user takes what the others need.
void share_among_users(ResourceLimits& limits, std::size_t max_clients);

}  // namespace mpsshim::broker::control
