// SPDX-License-Identifier: Apache-2.0
#include "tests/reliability/sides.hpp"

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace mpsshim::test {

namespace {

namespace fs = std::filesystem;

constexpr auto kPatience = std::chrono::seconds(20);

ProgramOptions conversing() {
  ProgramOptions options;
  options.converses = true;
  options.without = {"LD_PRELOAD", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"};
  return options;
}

class Native : public Side {
 public:
  Native() {
    // No daemon listens there, whatever runs on this machine.
    fs::create_directory(folder_.path() / "nobody");
    if (on_gpu()) return;
    fs::create_directory(folder_.path() / "driver");
    fs::create_symlink(built_library("libcuda_cpu.so"), folder_.path() / "driver" / "libcuda.so.1");
  }

  Program start(const std::string& program) override {
    ProgramOptions options = conversing();
    options.environment["CUDA_MPS_PIPE_DIRECTORY"] = folder_.path() / "nobody";
    // Where a program looks for the driver, it finds the CPU driver.
    if (!on_gpu()) options.environment["LD_LIBRARY_PATH"] = folder_.path() / "driver";
    return Program(built_program(program), options);
  }
  pid_t server() override { return -1; }

 private:
  TemporaryFolder folder_;
};

class NvidiaMps : public Side {
 public:
  NvidiaMps() {
    fs::create_directory(pipe());
    ProgramOptions options = control_options();
    options.arguments = {"-c", "setsid nvidia-cuda-mps-control -d"};
    const Outcome started = run_program("/bin/sh", options, kPatience);
    if (!started.ok()) throw std::runtime_error("nvidia-cuda-mps-control did not start: " + started.explain());
  }
  ~NvidiaMps() override {
    const pid_t last_server = server();
    const pid_t daemon = daemon_pid();
    (void)control("quit");
    const auto is_gone = [](pid_t pid) { return pid <= 0 || ::kill(pid, 0) != 0; };
    // Nothing of it may stay, whatever it answered.
    if (!eventually(std::chrono::seconds(5), [&] { return is_gone(daemon); })) ::kill(daemon, SIGKILL);
    if (!is_gone(last_server) && is_mps(last_server)) ::kill(last_server, SIGKILL);
  }

  Program start(const std::string& program) override {
    ProgramOptions options = conversing();
    options.environment["CUDA_MPS_PIPE_DIRECTORY"] = pipe();
    return Program(built_program(program), options);
  }
  pid_t server() override {
    pid_t pid = -1;
    std::istringstream(control("get_server_list")) >> pid;
    return pid;
  }
  std::string log() override {
    std::ostringstream text;
    for (const char* name : {"control.log", "server.log"}) text << std::ifstream(pipe() / name).rdbuf();
    return text.str();
  }

 private:
  [[nodiscard]] fs::path pipe() const { return folder_.path() / "mps"; }
  [[nodiscard]] ProgramOptions control_options() const {
    ProgramOptions options;
    options.environment = {{"CUDA_MPS_PIPE_DIRECTORY", pipe()}, {"CUDA_MPS_LOG_DIRECTORY", pipe()}};
    return options;
  }
  [[nodiscard]] std::string control(const std::string& command) const {
    ProgramOptions options = control_options();
    options.arguments = {"-c", "echo " + command + " | nvidia-cuda-mps-control"};
    return run_program("/bin/sh", options, kPatience).output;
  }
  [[nodiscard]] pid_t daemon_pid() const {
    pid_t pid = -1;
    std::ifstream(pipe() / "nvidia-cuda-mps-control.pid") >> pid;
    return pid;
  }
  [[nodiscard]] static bool is_mps(pid_t pid) {
    std::string name;
    std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
    return name.rfind("nvidia-cuda-mps", 0) == 0;
  }

  TemporaryFolder folder_;
};

// Kernels of the CPU driver take as long as the machine's other work makes them: others' work is waited for longer.
BrokerOptions broker_options() {
  BrokerOptions options;
  if (!on_gpu()) options.arguments = {"--drain-ms", "3000"};
  return options;
}

class Ours : public Side {
 public:
  Program start(const std::string& program) override {
    ProgramOptions options;
    options.converses = true;
    return broker_.start(program, options);
  }
  pid_t server() override {
    const std::vector<pid_t> servers = broker_.servers();
    return servers.empty() ? -1 : servers.front();
  }
  BrokerFixture* broker() override { return &broker_; }
  std::string log() override { return broker_.log(); }

 private:
  BrokerFixture broker_{broker_options()};
};

}  // namespace

std::unique_ptr<Side> make_side(SideKind kind) {
  switch (kind) {
    case SideKind::native: return std::make_unique<Native>();
    case SideKind::mps: return std::make_unique<NvidiaMps>();
    case SideKind::ours: return std::make_unique<Ours>();
  }
  return nullptr;
}

}  // namespace mpsshim::test
