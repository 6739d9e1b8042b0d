// SPDX-License-Identifier: Apache-2.0
#include "broker/control/processes/former_children.hpp"

#include <cerrno>
#include <csignal>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.hpp"
#include "tests/unit/control/support/turns.hpp"

using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

pid_t start_child(bool ends) {
  const pid_t child = fork();
  if (child != 0) return child;
  if (!ends) pause();
  _exit(0);
}

// A process that has ended and was not reaped is still there for kill().
bool is_there(pid_t pid) { return kill(pid, 0) == 0 || errno != ESRCH; }

}  // namespace

TEST_CASE("children of the program before are reaped, whenever they end") {
  EventLoop loop;
  const pid_t ended = start_child(true), ending = start_child(false);
  REQUIRE(ended > 0);
  REQUIRE(ending > 0);
  siginfo_t info{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(ended), &info, WEXITED | WNOWAIT) == 0);
  FormerChildren children(loop);
  children.take();
  CHECK_FALSE(is_there(ended));
  turn_for(loop, 20);
  CHECK(is_there(ending));
  kill(ending, SIGKILL);
  CHECK(turn_until(loop, [&] { return !is_there(ending); }));
  turn_for(loop, 20);
}
