// SPDX-License-Identifier: Apache-2.0
#include "history.hpp"

#include <algorithm>
#include <cstdio>

namespace mpsshim::soak {

std::string History::explain() const {
  const auto now = std::chrono::steady_clock::now();
  std::string text;
  const std::uint64_t kept = std::min<std::uint64_t>(count_, kKept);
  for (std::uint64_t i = count_ - kept; i < count_; ++i) {
    const Entry& entry = entries_[i % kKept];
    const auto ago = std::chrono::duration_cast<std::chrono::microseconds>(now - entry.when).count();
    char line[64];
    std::snprintf(line, sizeof line, "  %10lld us ago  #%llu ", static_cast<long long>(ago), static_cast<unsigned long long>(i));
    text += line;
    text += entry.what;
    for (const Detail& detail : entry.details) {
      if (detail.name == nullptr) break;
      std::snprintf(line, sizeof line, detail.value < 100'000'000 ? " %llu" : " %#llx", static_cast<unsigned long long>(detail.value));
      text += std::string(" ") + detail.name + line;
    }
    text += '\n';
  }
  return text;
}

}  // namespace mpsshim::soak
