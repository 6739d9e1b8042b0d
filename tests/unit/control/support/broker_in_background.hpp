// SPDX-License-Identifier: Apache-2.0
// mpsbroker and mpsctl as processes, for tests that look at them from outside. The executor is the tests' own (executor_without_driver.cpp).
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>

#include "proto/handshake.hpp"
#include "tests/support/catch.hpp"

namespace mpsshim::broker::control::testing {

struct Outcome {
  int status = -1;
  std::string text;  // standard output and error
};

inline Outcome run(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[1024];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) outcome.text += buffer;
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

template <typename Done>
bool eventually(Done&& done, int limit_ms = 5000) {
  for (int i = 0; i < limit_ms / 5; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// A broker in the background, in a directory of its own.
class Broker {
 public:
  explicit Broker(const std::string& behaviour, const std::string& options = "") {
    char name[] = "/tmp/mpsshim-test-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    root_ = name;
    dir = root_ + "/a directory with quite a long name, longer than what fits into an address of a socket, which is 107 characters";
    started = run("LD_PRELOAD= CUDA_MPS_PIPE_DIRECTORY=/nowhere CUDA_DEVICE_MAX_COPY_CONNECTIONS=32 " MPSSHIM_TEST_BROKER " -d --driver /test/" +
                  behaviour + " --pipe-dir '" + dir + "' " + options);
  }
  ~Broker() {
    (void)ctl("quit --now");
    (void)eventually([&] { return !serves(); });
    std::filesystem::remove_all(root_);
  }
  Outcome ctl(const std::string& command) const { return run(MPSSHIM_TEST_CTL " --pipe-dir '" + dir + "' " + command); }
  bool serves() const { return std::filesystem::exists(dir + "/" + proto::kControlSocketName); }
  std::string log() const {
    std::ifstream file(dir + "/control.log");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  pid_t executor() const {
    std::istringstream text(ctl("servers").text);  // of the process now
    std::string line;
    std::string number;
    pid_t pid = -1;
    std::getline(text, line);
    return text >> number >> pid ? pid : -1;
  }
  pid_t pid() const {
    std::ifstream file(dir + "/mpsbroker.lock");
    pid_t value = -1;
    file >> value;
    return value;
  }

  std::string dir;
  Outcome started;

 private:
  std::string root_;
};

}  // namespace mpsshim::broker::control::testing
