// SPDX-License-Identifier: Apache-2.0
// A broker in the foreground that does not begin, because something about its arguments is wrong.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/broker_fixture.hpp"

namespace mpsshim::test {

// With these besides what each needs, in a folder of its own.
inline Outcome try_to_begin(const std::vector<std::string>& arguments) {
  const TemporaryFolder folder;
  ProgramOptions options;
  options.arguments = {"-f", "--driver", "cpu", "--pipe-dir", folder.path()};
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  return run_program(built_program("mpsbroker"), options, std::chrono::seconds(20));
}

}  // namespace mpsshim::test
