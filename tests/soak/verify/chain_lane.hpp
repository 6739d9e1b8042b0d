// SPDX-License-Identifier: Apache-2.0
// A lane: arrays on the device that a chain of steps goes to and fro between, and what they must hold. They are never initialised again, so what
// went wrong once stays wrong. Where a result is wrong, the steps since the last right one are tried in all ways that one error would make of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exercise.hpp"

namespace mpsshim::soak {

class ChainLane {
 public:
  ChainLane(const Tools& tools, unsigned count);

  void launch(const Step& step, const Stream& stream);
  // Computes what must have come of the launches, downloads, compares.
  void verify(const Stream& stream);
  [[nodiscard]] unsigned count() const { return memory_.count; }

 private:
  using Words = std::vector<Word>;
  [[nodiscard]] std::string diagnose(const Words& found) const;
  [[nodiscard]] Words result_without(std::size_t step) const;

  Tools tools_;
  DeviceMemory first_, second_, scratch_, sum_;
  ChainMemory memory_;
  Words expected_;              // before steps_
  std::vector<Step> steps_;     // since then
  std::vector<Step> former_;    // before that
  std::uint64_t verified_ = 0;  // times
};

}  // namespace mpsshim::soak
