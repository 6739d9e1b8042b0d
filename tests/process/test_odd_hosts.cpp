// SPDX-License-Identifier: Apache-2.0
// Programs that do to themselves what programs may: what is theirs stays as they left it, and no call is their end.
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

void require_well(const std::string& how, const std::map<std::string, std::string>& environment = {}) {
  const BrokerFixture broker;
  ProgramOptions options;
  options.arguments = {how};
  options.environment = environment;
  const Outcome outcome = broker.run("odd_host", options);
  INFO(how << ": " << outcome.explain() << broker.log());
  REQUIRE(outcome.ok());
}

}  // namespace

TEST_CASE("files that a program has opened under numbers of the library's are never written") {
  const std::string how = GENERATE("files", "doorbells", "counters");
  require_well(how);
}

TEST_CASE("nor by the trace, whose file was closed as well") {
  const TemporaryFolder folder;
  require_well("files", {{"MPSSHIM_TRACE", folder.path() / "trace"}});
}

TEST_CASE("threads may be cancelled in calls") { require_well("cancelled"); }

TEST_CASE("no call ends a program whose files may not grow") {
  require_well("no_files", {{"MPSSHIM_DEBUG", "all"}});  // what the library says goes to a file here, too
}
