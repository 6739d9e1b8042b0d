// SPDX-License-Identifier: Apache-2.0
// Which Kubernetes pod and which container a process is in, as far as its cgroup's path says so. Paths are whatever the container runtime has made of
// them, so only what has one of the known shapes is taken:
//   pod        a folder "pod<uid>" (cgroupfs), or "kubepods[-<class>]-pod<uid>.slice" (systemd, with _ for -); a uid is a UUID, or the 32 digits
//              of a static pod's
//   container  the last folder: 64 hexadecimal digits, also between "<runtime>-" (cri-containerd, crio, docker, libpod) and ".scope"
// Values are lower-case hexadecimal digits and dashes, so they may stand in any text.
#pragma once

#include <string>
#include <string_view>

#include <sys/types.h>

namespace mpsshim::broker::control {

struct PodIdentity {
  std::string pod;        // "": it is in none, or nothing says so
  std::string container;  // likewise
};

[[nodiscard]] PodIdentity pod_of(pid_t pid);
// Of the contents of /proc/PID/cgroup: lines "0::/kubepods.slice/...", of which the first that says something counts.
[[nodiscard]] PodIdentity pod_in(std::string_view cgroups);

}  // namespace mpsshim::broker::control
