// SPDX-License-Identifier: Apache-2.0
// What lies where in this process, as the kernel tells it (proc_pid_maps(5)). Any thread; another one may change it at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

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
  bool is_memory_file = false;  // of memfd_create
  FileIdentity file;            // of no file: an inode of 0
  std::uint64_t offset_bytes = 0;
};

// Goes through all mappings, in the order of their addresses. Takes nothing from the heap, so it may be used while the process forks.
class MappingReader {
 public:
  MappingReader();
  ~MappingReader();
  MappingReader(const MappingReader&) = delete;

  // False: there is no further one, or the kernel does not tell.
  [[nodiscard]] bool next(Mapping& mapping);
  // All there are have been seen.
  [[nodiscard]] bool has_seen_all() const { return is_at_end_; }

 private:
  [[nodiscard]] bool fill();
  [[nodiscard]] bool read_line();

  int fd_;
  bool is_at_end_ = false;
  std::size_t next_ = 0;    // of bytes_, the first that has not been looked at
  std::size_t filled_ = 0;  // of bytes_
  std::array<char, 2048> bytes_{};
  std::array<char, 256> line_{};  // ends with 0; the rest of a longer one is left out
};

// All of `range` is private memory, no stack, which the process may read and write.
[[nodiscard]] bool is_private(AddressRange range);

}  // namespace mpsshim::interposer::forward
