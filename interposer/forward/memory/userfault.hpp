// SPDX-License-Identifier: Apache-2.0
// Descriptors of userfaultfd, and what headers of older kernels lack of it. Used by who includes it alone.
#pragma once

#include <cstdint>
#include <optional>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/segment.hpp"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif
#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif
#ifndef UFFDIO_CONTINUE_MODE_WP
#define UFFDIO_CONTINUE_MODE_WP (1ULL << 1)
#endif

namespace mpsshim::interposer::forward {

// Faults of the kernel too, as when a system call writes to a buffer, or the process's own alone, which needs no right.
enum class FaultsOf : std::uint8_t { everybody, process };

inline int new_userfault_descriptor(FaultsOf whose) {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;
  if (whose == FaultsOf::process) return static_cast<int>(syscall(SYS_userfaultfd, kFlags | UFFD_USER_MODE_ONLY));
  const int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
  if (device >= 0) {
    const int made = ioctl(device, USERFAULTFD_IOC_NEW, kFlags);
    close(device);
    if (made >= 0) return made;
  }
  return static_cast<int>(syscall(SYS_userfaultfd, kFlags));
}

// Not valid where the kernel has none, or not these features.
inline proto::FileDescriptor open_userfault(FaultsOf whose, std::uint64_t features) {
  proto::FileDescriptor fd(new_userfault_descriptor(whose));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  if (fd.valid() && ioctl(fd.get(), UFFDIO_API, &api) != 0) fd.reset();
  return fd;
}

}  // namespace mpsshim::interposer::forward
