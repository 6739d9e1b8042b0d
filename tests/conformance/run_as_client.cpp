// SPDX-License-Identifier: Apache-2.0
//
//   run_as_client [NAME=VALUE...] PROGRAM ARGUMENT...
// Runs a test program as the client of a private broker and ends with its exit status: CTest's way to run the conformance bodies forwarded.
// MPSSHIM_CPU_… are settings of the broker's driver, the others of the program.
// A request to list the cases needs no broker and gets none.
#include <glob.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/broker_fixture.hpp"

using namespace mpsshim::test;

namespace {

constexpr auto kLimit = std::chrono::seconds(100);  // below CTest's own, so that the broker's log is seen

using Environment = std::map<std::string, std::string>;

// By the device nodes, since each case is a process and a broker takes a GPU seconds to begin with.
bool has_one_gpu() {
  glob_t nodes{};
  const bool is_found = ::glob("/dev/nvidia[0-9]*", 0, nullptr, &nodes) == 0;
  const std::size_t count = nodes.gl_pathc;
  if (is_found) ::globfree(&nodes);
  return is_found && count == 1;
}

int run(const std::string& program, const std::vector<std::string>& arguments, const Environment& environment) {
  BrokerOptions of_broker;
  ProgramOptions options;
  options.arguments = arguments;
  for (const auto& [name, value] : environment) {
    (name.starts_with("MPSSHIM_CPU_") ? of_broker.environment : options.environment)[name] = value;
  }
  const BrokerFixture broker(of_broker);
  options.environment["MPSSHIM_TEST_DRIVER"] = "libcuda.so.1";  // which is libmpsshim.so here
  const Outcome outcome = broker.run(program, options, kLimit);
  std::fputs(outcome.output.c_str(), stdout);
  std::fputs(outcome.errors.c_str(), stderr);
  if (outcome.ok()) return 0;
  std::fprintf(stderr, "run_as_client: %s %s\n%s", program.c_str(), outcome.timed_out ? "ran out of time." : "failed.", broker.log().c_str());
  return outcome.exit_code > 0 ? outcome.exit_code : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  Environment environment;
  for (; argc > 1 && std::strchr(argv[1], '=') != nullptr; ++argv, --argc) {
    const std::string_view setting = argv[1];
    environment.emplace(setting.substr(0, setting.find('=')), setting.substr(setting.find('=') + 1));
  }
  if (argc < 2) {
    std::fprintf(stderr, "usage: run_as_client [NAME=VALUE...] PROGRAM [ARGUMENT...]\n");
    return 2;
  }
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  for (const std::string& argument : arguments) {
    if (argument.rfind("--list", 0) == 0) {
      execv(argv[1], argv + 1);
      std::perror(argv[1]);
      return 127;
    }
  }
  if (environment.contains("MPSSHIM_TEST_OTHER_DEVICE") && on_gpu() && has_one_gpu()) {
    std::puts("mpsshim-skip: the machine has one GPU");
    return 0;
  }
  return run(argv[1], arguments, environment);
} catch (const std::exception& error) {
  std::fprintf(stderr, "run_as_client: %s\n", error.what());
  return 1;
}
