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
    "usage: nvidia-cuda-mps-control [-d | -f | -v | -q] [-m] [-S] [-p 2|3] [COMMAND...]\n"
    "\n"
    "    -d                 starts the daemon in the background (mpsshim's mpsbroker)\n"
    "    -f                 starts it in the foreground\n"
    "    -v                 prints the version\n"
    "    -q, --quit         ends it\n"
    "    -multiuser-server, -m, --multiuser\n"
    "                       with -d or -f: for all users\n"
    "    -S, --static-partitioning\n"
    "                       with -d or -f: clients run in static partitions (sm_partition, lspart)\n"
    "    -p, --protocol 2|3 without effect: commands of both versions are understood\n"
    "\n"
    "A command stands in the arguments; without an option commands are read, one a line: get_server_list, get_server_status, start_server -uid UID, "
    "get_client_list,\n"
    "get_device_client_list, ps, terminate_client, device_query, quit, and {get|set}_ of default_active_thread_percentage,\n"
    "active_thread_percentage, default_device_pinned_mem_limit, device_pinned_mem_limit and default_client_priority; sm_partition and\n"
    "lspart of a daemon that was started with -S. In the arguments also those of version 3: server, namespace, client, device and\n"
    "sm-partition with their verbs. See mpsctl(1) for more.\n";

// Of the command line.
struct Wish {
  std::string_view mode;  // "-d", "-f", "-v" or "-q"; "": it asks
  bool is_for_all = false;
  bool is_parted = false;
  std::string command;
};

// nullopt: it cannot be understood.
std::optional<Wish> read_arguments(int argc, char** argv) {
  Wish wish;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "-d" || word == "-f" || word == "-v" || word == "-q") {
      wish.mode = word;
    } else if (word == "--quit") {
      wish.mode = "-q";
    } else if (word == "-multiuser-server" || word == "--multiuser-server" || word == "-m" || word == "--multiuser") {
      wish.is_for_all = true;
    } else if (word == "-S" || word == "--static-partitioning") {
      wish.is_parted = true;
    } else if ((word == "-p" || word == "--protocol") && i + 1 < argc &&
               (argv[i + 1] == std::string_view("2") || argv[i + 1] == std::string_view("3"))) {
      ++i;
    } else if (!word.starts_with('-')) {
      for (; i < argc; ++i) wish.command += (wish.command.empty() ? "" : " ") + std::string(argv[i]);
    } else {
      return std::nullopt;
    }
  }
  const bool starts = wish.mode == "-d" || wish.mode == "-f";
  if ((wish.is_parted && !starts) || (!wish.mode.empty() && !wish.command.empty())) return std::nullopt;
  return wish;
}

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

int start(const std::string& directory, const Wish& wish) {
  const std::string program = broker_program();
  const std::string logs = log_directory(directory);
  std::vector<const char*> words{program.c_str(), wish.mode == "-d" ? "-d" : "-f", "--pipe-dir", directory.c_str(), "--log-dir", logs.c_str()};
  if (wish.is_for_all) words.push_back("--multiuser-server");
  if (wish.is_parted) words.push_back("--static-partitioning");
  words.push_back(nullptr);
  execv(program.c_str(), const_cast<char* const*>(words.data()));
  std::perror(program.c_str());
  return 1;
}

int no_daemon() {
  std::fputs("Cannot find MPS control daemon process\n", stderr);
  return 1;
}

bool is_quit(const std::string& line) {
  const std::size_t begin = line.find_first_not_of(" \t");
  return begin != std::string::npos && line.substr(begin, line.find_first_of(" \t", begin) - begin) == "quit";
}

// nullopt: there is no daemon any more.
std::optional<int> print(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  std::fputs(text->c_str(), stdout);
  std::fflush(stdout);
  return 0;
}

// One command, or lines of them.
int answer_all(const std::string& directory, const std::string& command) {
  ctl::BrokerClient broker(directory);
  nvidia::Answers answers([&broker](const std::string& line) { return broker.ask(line, kAnswerLimit); });
  if (!command.empty() && !print(answers.answer_argument(command))) return no_daemon();
  if (is_quit(command)) (void)broker.await_end(std::nullopt);
  if (!command.empty()) return 0;
  for (std::string line; std::getline(std::cin, line);) {
    if (!print(answers.answer(line))) return no_daemon();
    if (!is_quit(line)) continue;
    (void)broker.await_end(std::nullopt);
    return 0;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<Wish> wish = read_arguments(argc, argv);
  if (!wish) {
    std::printf("Unrecognized option\n%s", kHelp);
    return 0;
  }
  if (wish->mode == "-v") {
    std::printf("mpsshim %s\n", MPSSHIM_VERSION);
    return 0;
  }
  const std::string directory = environment("CUDA_MPS_PIPE_DIRECTORY", kPipeDirectory);
  const bool is_named = directory != kPipeDirectory;
  const ctl::Reach reach = ctl::reach_of(directory, is_named ? ctl::Trust::anybody : ctl::Trust::user_and_root);
  if (wish->mode == "-d" || wish->mode == "-f") {
    if (reach == ctl::Reach::absent) return start(directory, *wish);
    std::puts("An instance of this daemon is already running");
    return 1;
  }
  if (reach != ctl::Reach::obeys) return no_daemon();
  return answer_all(directory, wish->mode == "-q" ? "quit" : wish->command);
}
