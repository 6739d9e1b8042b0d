// SPDX-License-Identifier: Apache-2.0
// Everything a client may hold while another one brings its executor down: memory of several sizes, pinned memory, streams of each kind,
// completed events, executable graphs, a module with its functions. All of it is made once; check() and use() then go by the old handles alone.
#pragma once

#include <array>
#include <vector>

#include "tests/process/programs/driver.hpp"
#include "tests/process/programs/held_graphs.hpp"

namespace mpsshim::test {

class HeldObjects {
 public:
  static constexpr std::size_t kLargestWords = 5'000'001;
  // `largest_words`: of its memory; the least is 50,000.
  explicit HeldObjects(const Device& device, std::size_t largest_words = kLargestWords);
  // Contents and states are what they were.
  void check() const;
  // New launches, copies, records and waits on the old objects, the results checked.
  void use();

 private:
  void use_pinned();

  static constexpr std::size_t kPinnedWords = 50'000;
  static constexpr std::size_t kUsedWords = 100'000;  // of one piece of memory by one kernel: the CPU driver takes 30 ns each
  const Device& device_;
  std::vector<Words> words_;
  std::array<CUstream, 4> streams_{};  // legacy, blocking, non-blocking, with a priority
  std::array<CUevent, 4> events_{};
  CUevent never_recorded_ = nullptr;
  CUevent shared_ = nullptr;  // with other processes
  unsigned* pinned_ = nullptr;
  std::vector<unsigned> pinned_expected_;
  HeldGraphs graphs_;
};

}  // namespace mpsshim::test
