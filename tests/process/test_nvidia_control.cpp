// SPDX-License-Identifier: Apache-2.0
// The program that has NVIDIA's name: what was recorded of NVIDIA's is played against it (check_nvidia_answers.py), and what a script does with it
// that has a client, which the record does not have, by the manual.
#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

const std::string kProgram = built_program("../libexec/mpsshim/nvidia/nvidia-cuda-mps-control");

Outcome say(const BrokerFixture& broker, const std::string& lines) {
  ProgramOptions options;
  options.environment = {{"CUDA_MPS_PIPE_DIRECTORY", broker.pipe_dir()}};
  options.input = lines;
  return run_program(kProgram, options);
}

Outcome call(const std::string& pipe_dir, std::vector<std::string> arguments) {
  ProgramOptions options;
  options.environment = {{"CUDA_MPS_PIPE_DIRECTORY", pipe_dir}, {"CUDA_MPS_LOG_DIRECTORY", pipe_dir}};
  options.arguments = std::move(arguments);
  return run_program(kProgram, options);
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream text(line);
  return {std::istream_iterator<std::string>(text), std::istream_iterator<std::string>()};
}

std::string answer(const BrokerFixture& broker, const std::string& line) {
  const Outcome outcome = say(broker, line + "\n");
  INFO(outcome.explain());
  CHECK(outcome.ok());
  CHECK(outcome.errors.empty());
  return outcome.output;
}

}  // namespace

TEST_CASE("answers are those that were recorded of NVIDIA's program") {
  const TemporaryFolder folder;
  ProgramOptions options;
  options.arguments = {"-B", MPSSHIM_SOURCE_DIR "/tests/process/check_nvidia_answers.py", kProgram,
                       MPSSHIM_SOURCE_DIR "/tests/process/nvidia_answers.json"};
  options.environment = {{"CUDA_MPS_PIPE_DIRECTORY", folder.path() / "pipe"}, {"CUDA_MPS_LOG_DIRECTORY", folder.path() / "log"}};
  const Outcome outcome = run_program(MPSSHIM_PYTHON, options, std::chrono::seconds(120));
  INFO(outcome.explain());
  CHECK(outcome.ok());
  CHECK(outcome.output.find("answered as recorded") != std::string::npos);
}

TEST_CASE("answers beside a server with clients are those that were recorded of NVIDIA's program") {
  const BrokerFixture broker;
  Client first(broker), second(broker);
  ProgramOptions options;
  options.arguments = {"-B",
                       MPSSHIM_SOURCE_DIR "/tests/process/check_nvidia_answers.py",
                       kProgram,
                       MPSSHIM_SOURCE_DIR "/tests/process/nvidia_answers_of_a_server.json",
                       std::to_string(first.program().pid()),
                       std::to_string(second.program().pid())};
  options.environment = {{"CUDA_MPS_PIPE_DIRECTORY", broker.pipe_dir()}};
  const Outcome outcome = run_program(MPSSHIM_PYTHON, options, std::chrono::seconds(120));
  INFO(outcome.explain());
  CHECK(outcome.ok());
  CHECK(outcome.output.find("answered as recorded") != std::string::npos);
}

TEST_CASE("a script of NVIDIA's finds server and clients, limits them and ends one") {
  const BrokerFixture broker;
  CHECK(answer(broker, "get_server_list").empty());
  Client client(broker);
  const std::string pid = std::to_string(client.program().pid());
  std::string server = answer(broker, "get_server_list");
  REQUIRE(server.ends_with('\n'));
  server.pop_back();
  REQUIRE(server.find('\n') == std::string::npos);
  CHECK(answer(broker, "get_server_status " + server) == "ACTIVE\n");
  CHECK(answer(broker, "get_client_list " + server) == pid + "\n");
  CHECK(answer(broker, "get_device_client_list").find("\n" + pid + ".1\n") != std::string::npos);
  const std::string clients = answer(broker, "ps");
  CHECK(clients.starts_with("PID       ID        SERVER         DEVICE"));
  CHECK(clients.find("\n" + pid + " ") != std::string::npos);
  CHECK(answer(broker, "ps -p " + server) == clients);
  CHECK(answer(broker, "set_active_thread_percentage " + server + " 25") == "25.0\n");
  CHECK(answer(broker, "get_active_thread_percentage " + server) == "25.0\n");
  CHECK(answer(broker, "get_default_active_thread_percentage") == "100.0\n");
  CHECK(answer(broker, "set_device_pinned_mem_limit " + server + " 0 1G").empty());
  CHECK(answer(broker, "get_device_pinned_mem_limit " + server + " 0") == "1G\n");
  CHECK(answer(broker, "get_default_device_pinned_mem_limit 0").empty());
  CHECK(answer(broker, "terminate_client " + server + " " + pid) == "0\n");
  // A conversation goes on after what is unknown, and ends with the daemon.
  const Outcome last = say(broker, "nonsense\nget_server_list\nquit -t 1\nget_server_list\n");
  INFO(last.explain());
  CHECK(last.ok());
  CHECK(last.output == "Unknown command \"nonsense\"\n" + server + "\n");
  CHECK(say(broker, "get_server_list\n").exit_code == 1);
}

TEST_CASE("a script of NVIDIA's makes static partitions, reads their table and removes them, in the form that the manual's programs read") {
  const TemporaryFolder folder;
  const std::string pipe_dir = folder.path() / "pipe";
  REQUIRE(call(pipe_dir, {"-d", "-S", "-p", "3"}).ok());
  const auto asked = [&](const std::vector<std::string>& words) {
    const Outcome outcome = call(pipe_dir, words);
    INFO(outcome.explain());
    CHECK(outcome.ok());
    CHECK(outcome.errors.empty());
    return outcome.output;
  };
  const auto table = [&] {
    std::istringstream text(asked({"lspart"}));
    std::vector<std::vector<std::string>> rows;
    for (std::string line; std::getline(text, line);) rows.push_back(words_of(line));
    return rows;
  };
  const auto rows = table();
  REQUIRE(rows.size() >= 3);
  CHECK(rows[0] == words_of("GPU Partition free used free used clients"));
  CHECK(rows[1] == words_of("chunks chunks SM SM"));
  REQUIRE(rows[2].size() == 5);
  const std::string gpu = rows[2][0];
  const unsigned free = static_cast<unsigned>(std::stoul(rows[2][1])), multiprocessors = static_cast<unsigned>(std::stoul(rows[2][3]));
  CHECK(rows[2][2] == "0");
  const std::string made = asked({"sm_partition", "add", gpu, "2"});
  CHECK(made.starts_with("Partition " + gpu));
  REQUIRE(made.ends_with(" created\n"));
  const std::string id = words_of(made)[1];
  const std::string number = id.substr(id.find('/') + 1);
  CHECK(asked({"sm_partition add " + gpu + " " + std::to_string(free)}) ==
        "Failed to fulfill the requested SM partition of " + std::to_string(free) + " chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\n");
  CHECK(asked({"sm_partition", "add", "GPU-none", "1"}).find("there is no device \"GPU-none\"") != std::string::npos);
  const auto after = table();
  REQUIRE(after.size() == rows.size() + 1);
  CHECK(after[2] == std::vector<std::string>{gpu, std::to_string(free - 2), "2", std::to_string(multiprocessors - 2 * multiprocessors / free),
                                             std::to_string(2 * multiprocessors / free)});
  CHECK(after[3] == std::vector<std::string>{gpu, number, "2", std::to_string(2 * multiprocessors / free), "No"});
  CHECK(asked({"sm_partition", "rm", gpu, number}).empty());
  CHECK(asked({"sm_partition", "rm", gpu, number}).find("has no partition " + number) != std::string::npos);
  CHECK(table() == rows);
  CHECK(asked({"sm_partition", "list"}) == "Unknown command \"sm_partition\"\n");
  // Version 3's words stand in the arguments.
  CHECK(asked({"sm-partition", "create", "large", "--device=" + gpu, "--chunks=1"}).find("CUDA_MPS_SM_PARTITION=" + gpu) != std::string::npos);
  CHECK(asked({"sm-partition", "list", "--format=csv,noheader"}).find(",large,1,") != std::string::npos);
  CHECK(asked({"server", "dance"}).find("server needs a verb behind it") != std::string::npos);
  CHECK(asked({"-q"}).empty());
  CHECK(call(pipe_dir, {"lspart"}).exit_code == 1);
}

TEST_CASE("a daemon of NVIDIA's name without the option knows no partitions, and odd command lines begin nothing") {
  const BrokerFixture broker;
  for (const char* command : {"lspart", "sm_partition"}) CHECK(answer(broker, command) == "Unknown command \"" + std::string(command) + "\"\n");
  for (const std::vector<std::string>& words : {std::vector<std::string>{"-p"}, {"-p", "4"}, {"-S"}, {"-q", "ps"}, {"-d", "ps"}, {"--nonsense"}}) {
    const Outcome outcome = call(broker.pipe_dir(), words);
    INFO(outcome.explain());
    CHECK(outcome.output.starts_with("Unrecognized option\n"));
    CHECK(outcome.exit_code == 0);
  }
  CHECK(call(broker.pipe_dir(), {"get_default_active_thread_percentage"}).output == "100.0\n");
}
