// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/mappings.hpp"

#include <cstdio>
#include <cstring>

#include <sys/mman.h>
#include <sys/sysmacros.h>

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
  mapping.file = {makedev(device_major, device_minor), static_cast<ino_t>(inode)};
  mapping.offset_bytes = offset;
  return true;
}

// visit(mapping) returns false when it has seen enough.
template <typename Visit>
void for_each_mapping(Visit&& visit) {
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return;
  char line[512];
  bool begins = true;  // longer lines come in pieces, of which the first says it all
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    Mapping mapping;
    const bool is_mapping = begins && parse(line, mapping);
    begins = std::strchr(line, '\n') != nullptr;
    if (is_mapping && !visit(mapping)) break;
  }
  std::fclose(maps);
}

}  // namespace

bool is_private(AddressRange range) {
  std::uint64_t covered = range.address;
  for_each_mapping([&](const Mapping& mapping) {
    if (mapping.range.end() <= covered) return true;
    constexpr int kBoth = PROT_READ | PROT_WRITE;
    const bool will_do = (mapping.protection & kBoth) == kBoth && !mapping.is_shared && !mapping.is_stack;
    if (mapping.range.address > covered || !will_do) return false;
    covered = mapping.range.end();
    return covered < range.end();
  });
  return covered >= range.end();
}

std::vector<Mapping> shared_mappings() {
  std::vector<Mapping> found;
  for_each_mapping([&](const Mapping& mapping) {
    if (mapping.is_shared && mapping.file.inode != 0) found.push_back(mapping);
    return true;
  });
  return found;
}

}  // namespace mpsshim::interposer::forward
