// SPDX-License-Identifier: Apache-2.0
// Memory of the first device that one process exports and another one uses on the second device: commands of `two_devices converse`.
//
//   export             an inter-process handle of the first device's words: "ok HANDLE"
//   open HANDLE        adds 3 to them in a kernel of the second device
//   export_mapped      words that the program has mapped, by a descriptor: "ok PID DESCRIPTOR"
//   import PID DESCRIPTOR  adds 5 to them in a kernel of the second device
//   check ADDED MAPPED  whether the words are so many: "ok"
#pragma once

#include <string>

#include "tests/process/programs/two_devices.hpp"

namespace mpsshim::test {

class Exports {
 public:
  // Nothing: it is none of these.
  [[nodiscard]] std::string answer(const std::string& line, const Sides& sides);

 private:
  [[nodiscard]] std::string export_mapped(const Side& side);

  CUdeviceptr words_ = 0;
  CUdeviceptr mapped_ = 0;
};

}  // namespace mpsshim::test
