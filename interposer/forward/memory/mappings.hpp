// SPDX-License-Identifier: Apache-2.0
// What lies where in this process, as the kernel tells it (proc_pid_maps(5)). Any thread; another one may change it at once.
#pragma once

#include <cstdint>
#include <vector>

#include <sys/types.h>

#include "interposer/forward/memory/address_range.hpp"

namespace mpsshim::interposer::forward {

// A file whatever descriptors there are of it.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FileIdentity&) const = default;
};

struct Mapping {
  AddressRange range;
  int protection = 0;  // PROT_READ and others
  bool is_shared = false;
  bool is_stack = false;
  FileIdentity file;  // of no file: an inode of 0
  std::uint64_t offset_bytes = 0;
};

// All of `range` is private memory, no stack, which the process may read and write.
[[nodiscard]] bool is_private(AddressRange range);

// The mappings that share a file's pages, in the order of their addresses. Empty as well where the kernel does not tell.
[[nodiscard]] std::vector<Mapping> shared_mappings();

}  // namespace mpsshim::interposer::forward
