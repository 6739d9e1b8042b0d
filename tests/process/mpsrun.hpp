// SPDX-License-Identifier: Apache-2.0
// How tests start mpsrun: with a broker of its own, or beside one that is there.
#pragma once

#include <string>
#include <vector>

#include "tests/support/broker_fixture.hpp"

namespace mpsshim::test {

// mpsrun's arguments for a program and its words; the pipe directory is in the folder.
inline ProgramOptions mpsrun(const TemporaryFolder& folder, std::vector<std::string> command) {
  ProgramOptions options;
  options.arguments = {"--driver", test_driver(), "--"};
  options.arguments.insert(options.arguments.end(), command.begin(), command.end());
  options.environment = sanitizer_environment();
  options.environment["CUDA_MPS_PIPE_DIRECTORY"] = folder.path() / "pipe";
  options.without = {"LD_PRELOAD", "MPSSHIM_REQUIRE", "MPSSHIM_DISABLE"};
  return options;
}

// mpsrun's arguments for a program beside a broker that is there.
inline ProgramOptions beside(const BrokerFixture& broker) {
  ProgramOptions options;
  options.arguments = {"--pipe-dir", broker.pipe_dir(), built_program("process2")};
  options.environment = sanitizer_environment();
  options.without = {"LD_PRELOAD"};
  return options;
}

}  // namespace mpsshim::test
