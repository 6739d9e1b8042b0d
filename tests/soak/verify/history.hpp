// SPDX-License-Identifier: Apache-2.0
// What one thread of a client has done of late: the last operations, each with a few numbers, told where something is wrong. Noting one costs some
// nanoseconds. Of one thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace mpsshim::soak {

struct Detail {
  const char* name = nullptr;
  std::uint64_t value = 0;
};

class History {
 public:
  static constexpr std::size_t kKept = 48;
  static constexpr std::size_t kDetails = 5;

  // `what` and the names live for ever.
  void note(const char* what, std::initializer_list<Detail> details = {}) {
    Entry& entry = entries_[count_++ % kKept];
    entry = {what, std::chrono::steady_clock::now(), {}};
    std::size_t i = 0;
    for (const Detail& detail : details) {
      if (i < kDetails) entry.details[i++] = detail;
    }
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  // A line each, the latest last; times are before now.
  [[nodiscard]] std::string explain() const;

 private:
  struct Entry {
    const char* what = nullptr;
    std::chrono::steady_clock::time_point when;
    std::array<Detail, kDetails> details;
  };
  std::array<Entry, kKept> entries_{};
  std::uint64_t count_ = 0;
};

}  // namespace mpsshim::soak
