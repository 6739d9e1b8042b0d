// SPDX-License-Identifier: Apache-2.0
#include "tests/support/broker_fixture.hpp"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace mpsshim::test {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kSanitizerRuntime = MPSSHIM_TEST_SANITIZER_RUNTIME;

std::string read_text(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Whole lines that are a number; everything else is heading.
std::vector<pid_t> pids_in(const std::string& text) {
  std::vector<pid_t> pids;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool is_number = !line.empty() && line.find_first_not_of("0123456789") == std::string::npos;
    if (is_number) pids.push_back(static_cast<pid_t>(std::stol(line)));
  }
  return pids;
}

// The process and all its descendants, by the kernel's lists of children.
std::vector<pid_t> family(pid_t pid) {
  std::vector<pid_t> members{pid};
  for (std::size_t i = 0; i < members.size(); ++i) {
    std::error_code error;
    const fs::path tasks = fs::path("/proc") / std::to_string(members[i]) / "task";
    for (const auto& task : fs::directory_iterator(tasks, error)) {
      std::istringstream children(read_text(task.path() / "children"));
      for (pid_t child = 0; children >> child;) members.push_back(child);
    }
  }
  return members;
}

void add_resources(pid_t pid, Resources& sum) {
  std::error_code error;
  const fs::path process = fs::path("/proc") / std::to_string(pid);
  for (const auto& entry : fs::directory_iterator(process / "fd", error)) {
    const std::string target = fs::read_symlink(entry.path(), error).string();
    sum.fd_targets.push_back(std::to_string(pid) + ": " + target.substr(0, target.find(":[")));
    ++sum.fds;
  }
  sum.threads += static_cast<int>(std::distance(fs::directory_iterator(process / "task", error), fs::directory_iterator()));
  ++sum.processes;
}

Program start_broker(const fs::path& folder, const BrokerOptions& options) {
  fs::create_directory(folder / "pipe");
  fs::permissions(folder / "pipe", fs::perms::owner_all);
  ProgramOptions program;
  program.arguments = {"-f",        "--driver",    options.driver.empty() ? test_driver() : options.driver, "--pipe-dir", folder / "pipe",
                       "--log-dir", folder / "log"};
  // What comes and goes with images is gone soon, so that what is held can be compared.
  for (const char* idle : {"--idle-compiler-ms", "--idle-linker-ms", "--most-idle-linker-ms"}) {
    if (std::ranges::find(options.arguments, idle) == options.arguments.end()) program.arguments.insert(program.arguments.end(), {idle, "300"});
  }
  program.arguments.insert(program.arguments.end(), options.arguments.begin(), options.arguments.end());
  program.without = {"LD_PRELOAD", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"};
  program.environment = options.environment;
  return Program(options.program.empty() ? built_program("mpsbroker") : options.program, program);
}

}  // namespace

std::string Resources::explain() const {
  std::string text = std::to_string(processes) + " processes, " + std::to_string(threads) + " threads, " + std::to_string(fds) + " fds\n";
  for (const std::string& target : fd_targets) text += "  " + target + "\n";
  return text;
}

std::string test_driver() {
  const char* asked = std::getenv("MPSSHIM_TEST_DRIVER");
  if (asked == nullptr || *asked == '\0') return "cpu";
  // Tests that load a driver themselves take its name; for the broker the machine's own driver is "cuda".
  return std::string(asked) == "libcuda.so.1" ? "cuda" : asked;
}

namespace {

// A tree may have been carried to another machine.
fs::path build_folder() {
  const char* const carried = std::getenv("MPSSHIM_TEST_TREE");
  return carried != nullptr && *carried != '\0' ? carried : MPSSHIM_TEST_BUILD_DIR;
}

}  // namespace

std::string built_program(const std::string& name) { return build_folder() / "bin" / name; }
std::string built_library(const std::string& name) { return build_folder() / "lib" / name; }

TemporaryFolder::TemporaryFolder() {
  const char* parent = std::getenv("TMPDIR");
  std::string pattern = std::string(parent != nullptr && *parent != '\0' ? parent : "/tmp") + "/mpsshim-test.XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) throw std::system_error(errno, std::generic_category(), "mkdtemp " + pattern);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

std::map<std::string, std::string> sanitizer_environment() {
  std::map<std::string, std::string> environment;
  if (const std::string_view runtime = kSanitizerRuntime; !runtime.empty()) {
    environment["LD_PRELOAD"] = runtime;
    // NVIDIA's driver, where a program passes through to it, maps memory in the gap of the shadow.
    environment["ASAN_OPTIONS"] = "detect_leaks=0:verify_asan_link_order=0:protect_shadow_gap=0";
  }
  return environment;
}

std::map<std::string, std::string> client_environment(const fs::path& pipe_dir) {
  std::map<std::string, std::string> environment = sanitizer_environment();
  std::string& preload = environment["LD_PRELOAD"];
  preload += (preload.empty() ? "" : ":") + built_library("libmpsshim.so");
  environment["CUDA_MPS_PIPE_DIRECTORY"] = pipe_dir;
  environment["MPSSHIM_REQUIRE"] = "1";
  return environment;
}

BrokerFixture::BrokerFixture(const BrokerOptions& options) : broker_(start_broker(folder_.path(), options)) {
  const bool answers = eventually(std::chrono::seconds(30), [&] { return ctl({"get_server_list"}).ok() || !broker_.running(); });
  if (answers && broker_.running()) return;
  throw std::runtime_error("the broker " + std::string(answers ? "ended at its start" : "did not answer within 30 s") + ":\n" + log());
}

Program BrokerFixture::start(const std::string& program, ProgramOptions options) const {
  for (const auto& [name, value] : client_environment(pipe_dir())) options.environment.emplace(name, value);
  const bool is_path = program.find('/') != std::string::npos;
  return Program(is_path ? program : built_program(program), options);
}

Outcome BrokerFixture::run(const std::string& program, ProgramOptions options, Milliseconds limit) const {
  Program running = start(program, std::move(options));
  return running.wait(limit);
}

Outcome BrokerFixture::run(const std::string& program, const std::vector<std::string>& arguments) const {
  ProgramOptions options;
  options.arguments = arguments;
  return run(program, std::move(options));
}

Outcome BrokerFixture::ctl(const std::vector<std::string>& arguments) const {
  ProgramOptions options;
  options.arguments = {"--pipe-dir", pipe_dir()};
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  return run_program(built_program("mpsctl"), options, std::chrono::seconds(20));
}

std::vector<pid_t> BrokerFixture::servers() const {
  std::istringstream lines(ctl({"servers"}).output);
  std::string line;
  std::vector<pid_t> pids;
  for (std::getline(lines, line); std::getline(lines, line);) {
    std::string number;
    pid_t pid = -1;
    if (std::istringstream(line) >> number >> pid) pids.push_back(pid);
  }
  return pids;
}

std::vector<pid_t> BrokerFixture::clients() const {
  std::vector<pid_t> all;
  for (const pid_t server : servers()) {
    const std::vector<pid_t> its = pids_in(ctl({"get_client_list", std::to_string(server)}).output);
    all.insert(all.end(), its.begin(), its.end());
  }
  return all;
}

bool BrokerFixture::wait_for_clients(std::size_t count, Milliseconds limit) const {
  return eventually(limit, [&] { return clients().size() == count; });
}

Resources BrokerFixture::resources() const {
  Resources sum;
  for (const pid_t pid : family(broker_.pid())) add_resources(pid, sum);
  std::sort(sum.fd_targets.begin(), sum.fd_targets.end());
  return sum;
}

Resources BrokerFixture::settled_resources() const {
  (void)eventually(std::chrono::seconds(10), [&] { return log().find("a standby (pid ") != std::string::npos; });
  Resources last = resources();
  (void)eventually(std::chrono::seconds(10), [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    const Resources now = resources();
    const bool same = now == last;
    last = now;
    return same;
  });
  return last;
}

std::string BrokerFixture::threads() const {
  std::string text = "--- threads\n";
  std::error_code error;
  for (const pid_t pid : family(broker_.pid())) {
    for (const auto& task : fs::directory_iterator(fs::path("/proc") / std::to_string(pid) / "task", error)) {
      const std::string stat = read_text(task.path() / "stat");  // "PID (NAME) STATE ..."
      text += stat.substr(0, stat.find(' ', stat.rfind(')') + 2)) + " of " + std::to_string(pid) + ": " + read_text(task.path() / "wchan") + "\n";
    }
  }
  return text;
}

std::string BrokerFixture::log() const {
  std::string text = broker_.output() + broker_.errors();
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_.path() / "log", error)) {
    text += "--- " + entry.path().filename().string() + "\n" + read_text(entry.path());
  }
  return text;
}

}  // namespace mpsshim::test
