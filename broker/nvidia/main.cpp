// SPDX-License-Identifier: Apache-2.0
// nvidia-cuda-mps-control, for scripts that were written for NVIDIA's: starts mpsbroker and asks it, and answers what that program answers
// (answers.hpp). It lies in a folder of its own (libexec/mpsshim/nvidia), for who wants it to put that in PATH. Under this name NVIDIA's directories
// are the default. Exit status 0: asked, whatever the answer was; 1: there is no daemon, or, with -d and -f, there is one already.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "broker/ctl/broker_client.hpp"
#include "broker/nvidia/answers.hpp"

namespace {

using namespace mpsshim::broker;
namespace fs = std::filesystem;

constexpr const char* kPipeDirectory = "/tmp/nvidia-mps";
constexpr const char* kLogDirectory = "/var/log/nvidia-mps";
constexpr std::chrono::milliseconds kAnswerLimit{60'000};
constexpr char kHelp[] =
    "usage: nvidia-cuda-mps-control [-d | -f | -v] [-multiuser-server]\n"
    "\n"
    "    -d                 starts the daemon in the background (mpsshim's mpsbroker)\n"
    "    -f                 starts it in the foreground\n"
    "    -v                 prints the version\n"
    "    -multiuser-server  with -d or -f: for all users\n"
    "\n"
    "Without an option commands are read, one a line: get_server_list, get_server_status, start_server -uid UID, get_client_list,\n"
    "get_device_client_list, ps, terminate_client, device_query, quit, and {get|set}_ of default_active_thread_percentage,\n"
    "active_thread_percentage, default_device_pinned_mem_limit, device_pinned_mem_limit and default_client_priority. See mpsctl(1) for more.\n";

std::string environment(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

// bin/mpsbroker beside libexec/mpsshim/nvidia, where it was installed or built.
std::string broker_program() {
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  return (here / "../../../bin/mpsbroker").lexically_normal().string();
}

// Who may not write where NVIDIA's logs are has them with the sockets.
std::string log_directory(const std::string& pipe_directory) {
  const char* const named = std::getenv("CUDA_MPS_LOG_DIRECTORY");
  if (named != nullptr && *named != '\0') return named;
  return geteuid() == 0 || access(kLogDirectory, W_OK | X_OK) == 0 ? kLogDirectory : pipe_directory;
}

int start(const std::string& directory, std::string_view mode, bool is_for_all) {
  const std::string program = broker_program();
  const std::string logs = log_directory(directory);
  std::vector<const char*> words{program.c_str(), mode == "-d" ? "-d" : "-f", "--pipe-dir", directory.c_str(), "--log-dir", logs.c_str()};
  if (is_for_all) words.push_back("--multiuser-server");
  words.push_back(nullptr);
  execv(program.c_str(), const_cast<char* const*>(words.data()));
  std::perror(program.c_str());
  return 1;
}

int no_daemon() {
  std::fputs("Cannot find MPS control daemon process\n", stderr);
  return 1;
}

int answer_lines(const std::string& directory) {
  ctl::BrokerClient broker(directory);
  nvidia::Answers answers([&broker](const std::string& command) { return broker.ask(command, kAnswerLimit); });
  for (std::string line; std::getline(std::cin, line);) {
    const std::optional<std::string> text = answers.answer(line);
    if (!text) return no_daemon();
    std::fputs(text->c_str(), stdout);
    std::fflush(stdout);
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos || line.substr(begin, line.find_first_of(" \t", begin) - begin) != "quit") continue;
    (void)broker.await_end(std::nullopt);
    return 0;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string_view mode;
  bool is_for_all = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "-d" || word == "-f" || word == "-v") {
      mode = word;
    } else if (word == "-multiuser-server" || word == "--multiuser-server") {
      is_for_all = true;
    } else {
      std::printf("Unrecognized option\n%s", kHelp);
      return 0;
    }
  }
  if (mode == "-v") {
    std::printf("mpsshim %s\n", MPSSHIM_VERSION);
    return 0;
  }
  const std::string directory = environment("CUDA_MPS_PIPE_DIRECTORY", kPipeDirectory);
  const bool is_named = directory != kPipeDirectory;
  const ctl::Reach reach = ctl::reach_of(directory, is_named ? ctl::Trust::anybody : ctl::Trust::user_and_root);
  if (!mode.empty()) {
    if (reach == ctl::Reach::absent) return start(directory, mode, is_for_all);
    std::puts("An instance of this daemon is already running");
    return 1;
  }
  return reach == ctl::Reach::obeys ? answer_lines(directory) : no_daemon();
}
