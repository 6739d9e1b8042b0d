// SPDX-License-Identifier: Apache-2.0
// mpsctl top beside clients at work: as text, and on a terminal (check_top.py).
#include <dlfcn.h>

#include <string>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

void check(const std::vector<std::string>& more) {
  const BrokerFixture broker;
  Client idle(broker), spinning(broker);
  for (const auto& [client, command] : {std::pair(&idle, "storm 100"), std::pair(&spinning, "spin")}) {
    const std::string answer = client->ask(command);
    INFO(answer << broker.log());
    REQUIRE(answer.rfind("ok", 0) == 0);
  }
  ProgramOptions options;
  options.arguments = {"-B",
                       MPSSHIM_SOURCE_DIR "/tests/process/check_top.py",
                       built_program("mpsctl"),
                       broker.pipe_dir(),
                       std::to_string(spinning.program().pid()),
                       std::to_string(idle.program().pid())};
  options.arguments.insert(options.arguments.end(), more.begin(), more.end());
  const Outcome outcome = run_program(MPSSHIM_PYTHON, options);
  INFO(outcome.explain() << broker.log());
  CHECK(outcome.ok());
}

}  // namespace

TEST_CASE("top: as text") { check({"--without-screen"}); }

TEST_CASE("top: on a terminal, where ncurses is installed") {
  if (dlopen("libncursesw.so.6", RTLD_NOW | RTLD_LOCAL) == nullptr) MPSSHIM_SKIP("ncurses is not installed");
  check({});
}
