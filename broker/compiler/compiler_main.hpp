// SPDX-License-Identifier: Apache-2.0
// The compiler process: reads images of one user's clients, one at a time, where it can harm nobody (sandbox.hpp). The control process starts it
// by re-executing its own binary with the hidden flag --compiler, and main() calls this. It finds its socket at kCompilerControlFd.
#pragma once

namespace mpsshim::broker {

struct CompilerOptions {
  // For tests: an image that has a text "mpsshim-test:WHAT" in it makes the process do WHAT before it reads it (test_faults.hpp).
  bool has_test_faults = false;
  bool dumpable = false;  // for the command line alone: main() has seen to it
};

// Runs until the control process hangs up. The result is the process's exit status.
int compiler_main(const CompilerOptions& options);

}  // namespace mpsshim::broker
