// SPDX-License-Identifier: Apache-2.0
// The program that has NVIDIA's name: what was recorded of NVIDIA's is played against it (check_nvidia_answers.py), and what a script does with it
// that has a client, which the record does not have, by the manual.
#include <algorithm>
#include <string>
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
  CHECK(answer(broker, "get_device_client_list").find("\n" + pid + "\n") != std::string::npos);
  const std::string clients = answer(broker, "ps");
  CHECK(clients.starts_with("PID       ID     SERVER    DEVICE"));
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
