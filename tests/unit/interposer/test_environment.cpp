// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string>
#include <vector>

#include <unistd.h>

#include "interposer/environment.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::interposer;

TEST_CASE("the pipe directories: the named one alone, else the user's, root's and the compatible one") {
  const std::string uid = std::to_string(getuid());
  unsetenv("CUDA_MPS_PIPE_DIRECTORY");
  unsetenv("XDG_RUNTIME_DIR");
  std::vector<std::string> expected = {"/run/user/" + uid + "/mpsshim", "/tmp/mpsshim-" + uid, "/run/mpsshim", "/tmp/nvidia-mps", "/run/nvidia-mps"};
  if (getuid() == 0) expected = {"/run/mpsshim", "/run/user/0/mpsshim", "/tmp/mpsshim-0", "/tmp/nvidia-mps", "/run/nvidia-mps"};
  CHECK(pipe_directories() == expected);
  setenv("XDG_RUNTIME_DIR", "/run/user/4711", 1);
  expected.insert(expected.begin() + (getuid() == 0 ? 1 : 0), "/run/user/4711/mpsshim");
  CHECK(pipe_directories() == expected);
  setenv("CUDA_MPS_PIPE_DIRECTORY", "/somewhere", 1);
  CHECK(pipe_directories() == std::vector<std::string>{"/somewhere"});
  CHECK(unnamed_pipe_directories() == expected);
  setenv("CUDA_MPS_PIPE_DIRECTORY", "", 1);
  CHECK(pipe_directories() == expected);
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
