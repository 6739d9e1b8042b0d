// SPDX-License-Identifier: Apache-2.0
// Executable graphs that a client holds while another one brings its executor down: one that was captured and changed since, one made of nodes,
// and one whose module is gone, which may still be ended. use() launches them by the old handles and compares.
#pragma once

#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {

class HeldGraphs {
 public:
  explicit HeldGraphs(const Device& device);
  void use();

 private:
  void capture();
  void build();
  void orphan();

  static constexpr unsigned kWords = 1'000;
  const Device& device_;
  Words words_;
  Words copied_;
  CUstream stream_ = nullptr;
  CUevent recorded_ = nullptr;
  CUgraph captured_graph_ = nullptr;
  CUgraphExec captured_ = nullptr;
  CUgraphExec built_ = nullptr;
  CUgraphExec orphan_ = nullptr;
  unsigned value_ = 0;  // that the captured graph adds
};

}  // namespace mpsshim::test
