// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string>

#include <unistd.h>

#include "interposer/environment.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::interposer;

TEST_CASE("the pipe directory: named, else the user's runtime folder, else /tmp") {
  unsetenv("CUDA_MPS_PIPE_DIRECTORY");
  unsetenv("XDG_RUNTIME_DIR");
  CHECK(pipe_directory() == "/tmp/mpsshim-" + std::to_string(getuid()));
  setenv("XDG_RUNTIME_DIR", "/run/user/1000", 1);
  CHECK(pipe_directory() == "/run/user/1000/mpsshim");
  setenv("CUDA_MPS_PIPE_DIRECTORY", "/somewhere", 1);
  CHECK(pipe_directory() == "/somewhere");
  setenv("CUDA_MPS_PIPE_DIRECTORY", "", 1);
  CHECK(pipe_directory() == "/run/user/1000/mpsshim");
}

TEST_CASE("a switch is on unless it is empty or 0") {
  unsetenv("MPSSHIM_REQUIRE");
  CHECK_FALSE(environment_switch(Variable::require));
  CHECK_FALSE(environment_is_set(Variable::require));
  for (const char* off : {"", "0"}) {
    setenv("MPSSHIM_REQUIRE", off, 1);
    CHECK_FALSE(environment_switch(Variable::require));
    CHECK(environment_is_set(Variable::require));
  }
  for (const char* on : {"1", "yes", "00"}) {
    setenv("MPSSHIM_REQUIRE", on, 1);
    CHECK(environment_switch(Variable::require));
  }
}
