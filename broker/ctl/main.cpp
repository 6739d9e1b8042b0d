// SPDX-License-Identifier: Apache-2.0
// mpsctl: asks a running broker. The command comes from the arguments, or one a line from standard input. Exit status 0 if every command was
// obeyed, 1 if one was not or no broker is there, with one line that says why.
#include <array>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "broker/command_line.hpp"
#include "broker/control/base/pipe_directory.hpp"
#include "proto/handshake.hpp"
#include "proto/socket.hpp"

namespace {

using namespace mpsshim;

constexpr int kAnswerLimitMs = 60'000;  // work that is to stop is given time, and may have to be waited for

int fail(const std::string& why) {
  std::fflush(stdout);
  std::fprintf(stderr, "mpsctl: %s\n", why.c_str());
  return 1;
}

// The whole answer, its first line included. False if the broker did not answer in time.
bool exchange(const proto::Socket& socket, const std::string& command, std::string& answer) {
  if (socket.send(std::as_bytes(std::span(command))) != proto::SocketStatus::ok) return false;
  std::array<std::byte, proto::kMaxMessageBytes> buffer;
  while (socket.wait_readable(kAnswerLimitMs)) {
    std::size_t bytes = 0;
    proto::ReceivedFds fds;
    if (socket.receive(buffer, bytes, fds) != proto::SocketStatus::ok) return !answer.empty();
    answer.append(reinterpret_cast<const char*>(buffer.data()), bytes);
  }
  return false;
}

int execute(const std::string& directory, const std::string& command) {
  if (command.size() >= proto::kMaxMessageBytes) return fail("the command is too long");
  const proto::Socket socket = proto::Socket::connect_to(directory + "/" + proto::kControlSocketName);
  if (!socket.valid()) return fail("no broker serves " + directory + ": start one with mpsbroker -d, or name its directory with --pipe-dir");
  std::string answer;
  if (!exchange(socket, command, answer)) return fail("the broker in " + directory + " does not answer: see its control.log");
  const std::size_t line = answer.find('\n');
  const std::string text = line == std::string::npos ? "" : answer.substr(line + 1);
  if (answer.substr(0, line) != "ok") return fail(text);
  std::fputs(text.c_str(), stdout);
  return 0;
}

int execute_lines(const std::string& directory) {
  int status = 0;
  for (std::string line; std::getline(std::cin, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    status |= execute(directory, line);
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  std::string pipe_dir;
  broker::CommandLine line("mpsctl: commands for a running mpsbroker; without a command, one a line from standard input");
  line.option("--pipe-dir", &pipe_dir,
              "Directory of the sockets (default: $CUDA_MPS_PIPE_DIRECTORY, else $XDG_RUNTIME_DIR/mpsshim, else /tmp/mpsshim-<uid>)");
  line.take_remaining(
      "Commands: get_server_list, get_server_status PID, get_client_list PID, ps [-l] [-p PID], terminate_client SERVER PID, "
      "restart [-f] [-t SECONDS] [executors], quit [-t SECONDS], help");
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;
  const std::string directory = mpsshim::broker::control::choose_pipe_directory(pipe_dir);
  const std::vector<std::string> words = line.remaining();
  if (words.empty()) return execute_lines(directory);
  std::string command;
  for (const std::string& word : words) command += (command.empty() ? "" : " ") + word;
  return execute(directory, command);
}
