// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/read_file.hpp"

#include <cstdio>

namespace mpsshim::interposer::forward {

bool read_file(const char* path, std::vector<std::byte>& content) {
  std::FILE* file = std::fopen(path, "rbe");
  if (file == nullptr) return false;
  std::byte buffer[64 * 1024];
  std::size_t got = 0;
  while ((got = std::fread(buffer, 1, sizeof buffer, file)) != 0) content.insert(content.end(), buffer, buffer + got);
  const bool complete = std::ferror(file) == 0;
  std::fclose(file);
  return complete;
}

}  // namespace mpsshim::interposer::forward
