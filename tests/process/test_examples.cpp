// SPDX-License-Identifier: Apache-2.0
// The examples are unmodified programs that check themselves: alone, several of a kind, and all kinds at once, each must be right.
#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

struct Example {
  std::string name;
  std::vector<std::string> small;  // arguments for a run beside others: on the CPU driver every instruction is interpreted
  std::string says;
};

const std::vector<Example> kExamples = {
    {"process1", {}, "Process 1 done."},
    {"process2", {}, "Process 2 done."},
    {"vector_add_drv", {}, "sums on"},
    {"matrix_mul", {"96"}, "product right"},
    {"stream_overlap", {"8192"}, "streams right"},
    {"launch_storm", {"20000"}, "dependent launches right"},
    {"managed_histogram", {"2000"}, "bins right"},
};

const Example& example(std::string_view name) {
  for (const Example& candidate : kExamples) {
    if (candidate.name == name) return candidate;
  }
  throw std::invalid_argument("no example " + std::string(name));
}

void require_right(const Example& example, const Outcome& outcome, const BrokerFixture& broker) {
  INFO(example.name << ": " << outcome.explain() << "--- broker\n" << broker.log());
  REQUIRE(outcome.ok());
  REQUIRE(outcome.output.find(example.says) != std::string::npos);
}

void runs_alone(const std::string& name) {
  const BrokerFixture broker;
  require_right(example(name), broker.run(name), broker);
}

void run_together(const std::vector<Example>& examples) {
  const BrokerFixture broker;
  std::vector<Program> programs;
  for (const Example& each : examples) {
    ProgramOptions options;
    if (!on_gpu()) options.arguments = each.small;
    programs.push_back(broker.start(each.name, options));
  }
  for (std::size_t i = 0; i < programs.size(); ++i) require_right(examples[i], programs[i].wait(std::chrono::seconds(90)), broker);
  // Nothing of them is left at the broker.
  REQUIRE(broker.wait_for_clients(0));
}

// The processes that have a context on a GPU, whoever started them; empty where nobody can say.
std::set<pid_t> compute_processes() {
  ProgramOptions options;
  options.arguments = {"-c", "nvidia-smi --query-compute-apps=pid --format=csv,noheader"};
  const Outcome outcome = run_program("/bin/sh", options, std::chrono::seconds(20));
  std::set<pid_t> pids;
  std::istringstream lines(outcome.output);
  for (pid_t pid = 0; outcome.ok() && lines >> pid;) pids.insert(pid);
  return pids;
}

}  // namespace

TEST_CASE("process1 runs alone") { runs_alone("process1"); }
TEST_CASE("process2 runs alone") { runs_alone("process2"); }
TEST_CASE("vector_add_drv runs alone") { runs_alone("vector_add_drv"); }
TEST_CASE("matrix_mul runs alone") { runs_alone("matrix_mul"); }
TEST_CASE("stream_overlap runs alone") { runs_alone("stream_overlap"); }
TEST_CASE("launch_storm runs alone") { runs_alone("launch_storm"); }
TEST_CASE("managed_histogram runs alone") { runs_alone("managed_histogram"); }

TEST_CASE("four of process1 at once") { run_together(std::vector<Example>(4, example("process1"))); }
TEST_CASE("four of vector_add_drv at once") { run_together(std::vector<Example>(4, example("vector_add_drv"))); }
TEST_CASE("four of matrix_mul at once") { run_together(std::vector<Example>(4, example("matrix_mul"))); }
TEST_CASE("four of stream_overlap at once") { run_together(std::vector<Example>(4, example("stream_overlap"))); }
TEST_CASE("four of launch_storm at once") { run_together(std::vector<Example>(4, example("launch_storm"))); }
TEST_CASE("four of managed_histogram at once") { run_together(std::vector<Example>(4, example("managed_histogram"))); }
TEST_CASE("one of each example at once") { run_together(kExamples); }

// Programs that use all devices that there are; one of them needs two.
const std::vector<Example> kOnSeveral = {
    {"peer_copy", {"50000"}, "between two devices right"},
    {"sum_on_all", {"100000"}, "right."},
    {"conjugate_gradient", {"2000"}, "solution right"},
};

void run_on_devices(const std::vector<Example>& examples, unsigned devices) {
  BrokerOptions options;
  options.environment["MPSSHIM_CPU_DEVICES"] = std::to_string(devices);
  const BrokerFixture broker(options);
  std::vector<Program> programs;
  for (const Example& each : examples) {
    ProgramOptions program;
    program.arguments = each.small;
    programs.push_back(broker.start(each.name, program));
  }
  for (std::size_t i = 0; i < programs.size(); ++i) {
    const Outcome outcome = programs[i].wait(std::chrono::seconds(90));
    if (outcome.errors.find("it needs two devices") != std::string::npos && on_gpu()) MPSSHIM_SKIP("the machine has one GPU");
    require_right(examples[i], outcome, broker);
  }
  REQUIRE(broker.wait_for_clients(0));
}

TEST_CASE("examples on two devices, each alone") {
  for (const Example& each : kOnSeveral) run_on_devices({each}, 2);
}
TEST_CASE("examples on four devices at once, two of each") {
  std::vector<Example> twice = kOnSeveral;
  twice.insert(twice.end(), kOnSeveral.begin(), kOnSeveral.end());
  run_on_devices(twice, 4);
}
TEST_CASE("examples for several devices do with one, but for the one that needs two") {
  run_on_devices({kOnSeveral[1], kOnSeveral[2]}, 1);
  const BrokerFixture broker;
  if (on_gpu()) MPSSHIM_SKIP("a GPU more or less is the machine's");
  const Outcome outcome = broker.run("peer_copy", kOnSeveral[0].small);
  CHECK_FALSE(outcome.ok());
  CHECK(outcome.errors.find("it needs two devices, and sees 1") != std::string::npos);
}

TEST_CASE("sixteen programs at once, one process on the GPU") {
  const BrokerFixture broker;
  std::vector<Example> examples;
  std::vector<Program> programs;
  for (std::size_t i = 0; i < 16; ++i) {
    examples.push_back(kExamples[i % kExamples.size()]);
    ProgramOptions options;
    if (!on_gpu()) options.arguments = examples.back().small;
    programs.push_back(broker.start(examples.back().name, options));
  }
  // While one more runs for certain.
  ProgramOptions for_seconds;
  for_seconds.arguments = {"3"};
  Program longest = broker.start("process1", for_seconds);
  REQUIRE(eventually(std::chrono::seconds(20), [&] { return !broker.clients().empty(); }));
  const std::vector<pid_t> clients = broker.clients();
  const std::vector<pid_t> servers = broker.servers();
  const std::set<pid_t> processes = on_gpu() ? compute_processes() : std::set<pid_t>{};
  for (std::size_t i = 0; i < programs.size(); ++i) require_right(examples[i], programs[i].wait(std::chrono::seconds(90)), broker);
  require_right(example("process1"), longest.wait(std::chrono::seconds(90)), broker);
  if (!processes.empty()) {  // of all that belongs to this broker the executor alone is on the GPU
    REQUIRE(servers.size() == 1);
    CHECK(processes.contains(servers.front()));
    for (const pid_t client : clients) CHECK_FALSE(processes.contains(client));
  }
  REQUIRE(broker.wait_for_clients(0));
}

TEST_CASE("a broker serves one program after another and keeps nothing of them") {
  const BrokerFixture broker;
  const Example& drv = example("vector_add_drv");
  // Caches and pools fill in the first runs; after that nothing may grow.
  for (int i = 0; i < 3; ++i) require_right(drv, broker.run(drv.name), broker);
  REQUIRE(broker.wait_for_clients(0));
  const Resources before = broker.settled_resources();
  for (int i = 0; i < 10; ++i) require_right(drv, broker.run(drv.name), broker);
  const bool back = eventually(std::chrono::seconds(5), [&] { return broker.resources().is_within(before); });
  INFO("before: " << before.explain() << "after: " << broker.resources().explain());
  REQUIRE(back);
}
