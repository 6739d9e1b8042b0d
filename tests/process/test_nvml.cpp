// SPDX-License-Identifier: Apache-2.0
// The shadow of NVIDIA's management library: what a client is told of its own memory, what there is without NVIDIA's library, what goes on to it. On
// a machine that has the real one it is hidden, and a fake stands in its place.
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr unsigned long long kMiB = 1 << 20;
const std::string kNone = "/nonexistent/libnvidia-ml.so.1";

namespace fs = std::filesystem;
using Environment = std::map<std::string, std::string>;
// "0 ANSWER" by question.
using Answers = std::map<std::string, std::string>;

Answers ask(const BrokerFixture& broker, const std::string& real, const std::vector<std::string>& questions, const Environment& more = {}) {
  ProgramOptions options;
  options.arguments = questions;
  options.environment = more;
  options.environment.try_emplace("LD_LIBRARY_PATH", built_library("libcuda"));
  options.environment["MPSSHIM_REAL_NVML"] = real;
  const Outcome outcome = broker.run("nvml_client", options);
  INFO(outcome.explain());
  REQUIRE(outcome.ok());
  Answers answers;
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);) answers[line.substr(0, line.find(' '))] = line.substr(line.find(' ') + 1);
  return answers;
}

std::vector<unsigned long long> numbers(const std::string& answer) {
  std::istringstream words(answer);
  std::vector<unsigned long long> found;
  for (unsigned long long number = 0; words >> number;) found.push_back(number);
  return found;
}

std::string field(const BrokerFixture& broker, int column) {
  Outcome devices;
  REQUIRE(eventually(std::chrono::seconds(30), [&] { return (devices = broker.ctl({"device_query", "--format=csv,noheader"})).ok(); }));
  std::istringstream row(devices.output);
  std::string cell;
  for (int i = 0; i <= column; ++i) std::getline(row, cell, ',');
  return cell;
}

std::string fake() { return built_library("libfake_nvml.so"); }

}  // namespace

TEST_CASE("nvml without NVIDIA's library: what the broker's facts can tell, and not supported for the rest") {
  const BrokerFixture broker;
  const std::string pci = field(broker, 1), uuid = field(broker, 2);
  const Answers before = ask(broker, kNone, {"count", "shutdown", "text"});
  CHECK(before.at("count") == "1 ");
  CHECK(before.at("shutdown") == "1 ");
  CHECK(before.at("text") == "0 Not Supported");
  Answers told = ask(broker, kNone,
                     {"init", "count", "count1", "first", "beyond", "name", "uuid", "index", "by-uuid=" + uuid, "by-pci=0000" + pci, "capability",
                      "cuda", "power", "wild", "samples", "shutdown"});
  CHECK(told.at("init") == "0 ");
  CHECK(told.at("count") == "0 1");
  CHECK(told.at("count1") == "0 1");
  CHECK(told.at("beyond") == "2 ");
  CHECK(told.at("name") == "0 " + field(broker, 6).substr(0, field(broker, 6).find('\n')));
  CHECK(told.at("uuid") == "0 " + uuid);
  CHECK(told.at("index") == "0 0");
  CHECK(told.at("by-uuid") == "0 the same");
  CHECK(told.at("by-pci") == "0 the same");
  CHECK(told.at("capability") == "0 " + field(broker, 5));
  CHECK(numbers(told.at("cuda")).at(1) >= 12'000);
  CHECK(told.at("power") == "3 ");
  CHECK(told.at("samples") == "3 ");
  CHECK(told.at("wild") == "2 ");
  CHECK(told.at("shutdown") == "0 ");
  told = ask(broker, kNone, {"init", "init", "shutdown", "first", "by-uuid=GPU-0", "by-pci=ffff:ff:1f", "driver"});
  CHECK(told.at("first") == "0 ");  // as often initialised as ended, and once more
  CHECK(told.at("by-uuid") == "6 ");
  CHECK(told.at("by-pci") == "6 ");
  CHECK(told.at("driver").starts_with(access("/proc/driver/nvidia/version", R_OK) == 0 ? "0 " : "3 "));
}

TEST_CASE("nvml: a client sees its own limit of memory and its own use") {
  const BrokerFixture broker;
  const unsigned long long device_bytes = std::stoull(field(broker, 3));
  const std::vector<std::string> questions = {"init", "first", "memory", "memory2", "memory2-wrong"};
  std::vector<std::string> with_memory = questions;
  with_memory.insert(with_memory.begin(), {"--cuda", "256"});
  const Environment limited = {{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"}};

  Answers told = ask(broker, kNone, with_memory, limited);
  std::vector<unsigned long long> memory = numbers(told.at("memory"));
  CHECK(memory.at(1) == 1024 * kMiB);
  CHECK(memory.at(2) + memory.at(3) == memory.at(1));
  CHECK(memory.at(3) >= 256 * kMiB);
  CHECK(memory.at(3) < 512 * kMiB);
  CHECK(numbers(told.at("memory2")) == std::vector<unsigned long long>{0, memory[1], 0, memory[2], memory[3]});
  CHECK(told.at("memory2-wrong") == "25 ");

  // Without a session there is no use, and of limits only the one that the program was started with is known.
  CHECK(numbers(ask(broker, kNone, questions, limited).at("memory")) == std::vector<unsigned long long>{0, 1024 * kMiB, 1024 * kMiB, 0});
  CHECK(numbers(ask(broker, kNone, questions).at("memory")) == std::vector<unsigned long long>{0, device_bytes, device_bytes, 0});

  REQUIRE(broker.ctl({"set_device_pinned_mem_limit", std::to_string(broker.servers().at(0)), "0", "512M"}).ok());
  memory = numbers(ask(broker, kNone, with_memory).at("memory"));
  CHECK(memory.at(1) == 512 * kMiB);
  CHECK(memory.at(3) >= 256 * kMiB);
}

TEST_CASE("nvml with NVIDIA's library: all goes on to it, but for the memory of a client's own device") {
  const BrokerFixture broker;
  const Environment own = {{"FAKE_NVML_UUID", field(broker, 2)}, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"}};
  const std::vector<std::string> questions = {"--cuda", "256",     "init", "first",  "count",   "name",       "power",   "index",
                                              "cuda",   "samples", "text", "memory", "memory2", "capability", "shutdown"};
  Answers told = ask(broker, fake(), questions, own);
  CHECK(told.at("count") == "0 7");
  CHECK(told.at("name") == "0 a real one");
  CHECK(told.at("power") == "0 300000");
  CHECK(told.at("index") == "0 3");
  CHECK(told.at("cuda") == "0 4711");
  CHECK(told.at("samples") == "0 6");  // six words
  CHECK(told.at("text") == "0 real words");
  CHECK(told.at("capability") == "13 ");  // which this one lacks
  const std::vector<unsigned long long> memory = numbers(told.at("memory"));
  CHECK(memory.at(1) == 1024 * kMiB);
  CHECK(memory.at(3) >= 256 * kMiB);
  CHECK(numbers(told.at("memory2")) == std::vector<unsigned long long>{0, memory[1], 0, memory[2], memory[3]});

  Environment other = own;
  other["FAKE_NVML_UUID"] = "GPU-00000000-0000-0000-0000-000000000000";
  told = ask(broker, fake(), questions, other);
  CHECK(told.at("memory") == "0 80000000000 50000000000 30000000000");
  CHECK(told.at("memory2") == "0 80000000000 1000000000 49000000000 30000000000");
  // Of its own device as well, where it has neither a session nor a limit.
  told = ask(broker, fake(), {"init", "first", "memory"}, {{"FAKE_NVML_UUID", field(broker, 2)}});
  CHECK(told.at("memory") == "0 80000000000 50000000000 30000000000");
}

TEST_CASE("nvml: NVIDIA's library is found where the loader looks, and never the shadow itself or a copy of it") {
  const BrokerFixture broker;
  const TemporaryFolder copies, fakes;
  fs::copy_file(built_library("libmpsshim-nvml.so"), copies.path() / "libnvidia-ml.so.1");
  fs::create_symlink(fake(), fakes.path() / "libnvidia-ml.so.1");
  const std::vector<std::string> questions = {"init", "first", "name"};
  const std::string of_broker = "0 " + field(broker, 6).substr(0, field(broker, 6).find('\n'));
  for (const std::string& own :
       {built_library("libmpsshim-nvml.so"), built_library("libcuda/libnvidia-ml.so.1"), (copies.path() / "libnvidia-ml.so.1").string()}) {
    INFO(own);
    CHECK(ask(broker, own, questions).at("name") == of_broker);
  }
  const Environment folders = {{"LD_LIBRARY_PATH", built_library("libcuda") + ":" + copies.path().string() + ":" + fakes.path().string()},
                               {"FAKE_NVML_UUID", "GPU-0"}};
  CHECK(ask(broker, "", questions, folders).at("name") == "0 a real one");
}

TEST_CASE("nvml: a library of NVIDIA's that finds no driver is as none") {
  const BrokerFixture broker;
  const Environment without_driver = {{"FAKE_NVML_INIT", "9"}};
  const Answers told = ask(broker, fake(), {"init", "count", "first", "name"}, without_driver);
  CHECK(told.at("init") == "0 ");
  CHECK(told.at("count") == "0 1");
  CHECK(told.at("name") != "0 a real one");
  CHECK(ask(broker, fake(), {"init"}, {{"FAKE_NVML_INIT", "4"}}).at("init") == "4 ");
}

TEST_CASE("nvml in a program that no broker serves: NVIDIA's library, or none") {
  const BrokerFixture broker;
  const Environment alone = {{"MPSSHIM_DISABLE", "1"}, {"FAKE_NVML_UUID", field(broker, 2)}, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"}};
  Answers told = ask(broker, kNone, {"init", "count"}, alone);
  CHECK(told.at("init") == "12 ");
  CHECK(told.at("count") == "1 ");
  told = ask(broker, fake(), {"init", "first", "memory"}, alone);
  CHECK(told.at("memory") == "0 80000000000 50000000000 30000000000");
}

TEST_CASE("nvml in a child of fork: asked anew, and of a process that had a context nothing") {
  const BrokerFixture broker;
  CHECK(ask(broker, kNone, {"init", "fork"}).at("count") == "0 1");
  CHECK(ask(broker, kNone, {"--cuda", "1", "init", "fork"}).at("count") == "1 ");
}

TEST_CASE("nvml: mpsrun gives its program the shadow, and a limit of memory that it shows") {
  const BrokerFixture broker;
  const auto run = [&](std::vector<std::string> before, const std::vector<std::string>& questions) {
    ProgramOptions options;
    options.arguments = {"--pipe-dir", broker.pipe_dir()};
    before.push_back(built_program("nvml_client"));
    options.arguments.insert(options.arguments.end(), before.begin(), before.end());
    options.arguments.insert(options.arguments.end(), questions.begin(), questions.end());
    options.environment = {{"MPSSHIM_REAL_NVML", kNone}};
    options.without = {"LD_PRELOAD", "LD_LIBRARY_PATH", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"};
    return run_program(built_program("mpsrun"), options).output;
  };
  CHECK(run({}, {"init", "count"}) == "init 0 \ncount 0 1\n");
  CHECK(run({"--mem", "300M"}, {"init", "first", "memory"}).find("memory 0 314572800 314572800 0\n") != std::string::npos);
  CHECK(run({"--mem", "300M"}, {"--cuda", "200", "init", "first", "memory"}).find("memory 0 314572800 ") != std::string::npos);
  CHECK(run({"--mem", "300M"}, {"--cuda", "400"}) == "no device memory\n");
}
