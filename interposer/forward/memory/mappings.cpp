// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/mappings.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

namespace mpsshim::interposer::forward {

namespace {

bool parse(const char* line, Mapping& mapping) {
  unsigned long long begin = 0, end = 0, offset = 0, inode = 0;
  unsigned device_major = 0, device_minor = 0;
  char access[5] = "";
  // NOLINTNEXTLINE(cert-err34-c): the kernel has written them
  if (std::sscanf(line, "%llx-%llx %4s %llx %x:%x %llu", &begin, &end, access, &offset, &device_major, &device_minor, &inode) != 7) return false;
  mapping.range = {begin, end - begin};
  mapping.protection = (access[0] == 'r' ? PROT_READ : 0) | (access[1] == 'w' ? PROT_WRITE : 0) | (access[2] == 'x' ? PROT_EXEC : 0);
  mapping.is_shared = access[3] == 's';
  mapping.is_stack = std::strstr(line, "[stack]") != nullptr;
  mapping.is_memory_file = std::strstr(line, " /memfd:") != nullptr;
  mapping.file = {makedev(device_major, device_minor), static_cast<ino_t>(inode)};
  mapping.offset_bytes = offset;
  return true;
}

}  // namespace

// The thread's own: the process's first one may have ended.
MappingReader::MappingReader() : fd_(open("/proc/thread-self/maps", O_RDONLY | O_CLOEXEC)) {}

MappingReader::~MappingReader() {
  if (fd_ >= 0) close(fd_);
}

bool MappingReader::fill() {
  ssize_t bytes = -1;
  do {
    bytes = fd_ >= 0 ? read(fd_, bytes_.data(), bytes_.size()) : -1;
  } while (bytes < 0 && fd_ >= 0 && errno == EINTR);
  next_ = 0;
  filled_ = bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
  is_at_end_ = bytes == 0;
  return filled_ > 0;
}

bool MappingReader::read_line() {
  std::size_t length = 0;
  for (;;) {
    if (next_ == filled_ && !fill()) return false;  // the kernel ends each line
    const char byte = bytes_[next_++];
    if (byte == '\n') break;
    if (length + 1 < line_.size()) line_[length++] = byte;
  }
  line_[length] = 0;
  return true;
}

bool MappingReader::next(Mapping& mapping) {
  while (read_line()) {
    if (parse(line_.data(), mapping)) return true;
  }
  return false;
}

bool is_private(AddressRange range) {
  MappingReader mappings;
  Mapping mapping;
  std::uint64_t covered = range.address;
  while (covered < range.end() && mappings.next(mapping)) {
    if (mapping.range.end() <= covered) continue;
    constexpr int kBoth = PROT_READ | PROT_WRITE;
    const bool will_do = (mapping.protection & kBoth) == kBoth && !mapping.is_shared && !mapping.is_stack;
    if (mapping.range.address > covered || !will_do) return false;
    covered = mapping.range.end();
  }
  return covered >= range.end();
}

}  // namespace mpsshim::interposer::forward
