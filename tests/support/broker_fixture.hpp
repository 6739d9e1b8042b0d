// SPDX-License-Identifier: Apache-2.0
// A private broker for one test case: its own pipe directory, its own log, gone without a trace at the end.
//
//   BrokerFixture broker;
//   const Outcome one = broker.run("process1");
//   INFO(one.explain());
//   REQUIRE(one.ok());
//
// Programs named without a slash are those of the build's bin folder. They run as clients: libmpsshim.so preloaded, MPSSHIM_REQUIRE=1, so a
// test can never pass beside the broker. The driver is the CPU driver; MPSSHIM_TEST_DRIVER (scripts/test --gpu) names another one for all
// tests. Used from one thread. A constructor that throws says what the broker printed.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/program.hpp"

namespace mpsshim::test {

// What the broker's processes hold, to be compared before and after.
struct Resources {
  int processes = 0;
  int fds = 0;
  int threads = 0;
  std::vector<std::string> fd_targets;  // "pid: target" for each, sorted: what INFO shows when the numbers differ
  friend bool operator==(const Resources& a, const Resources& b) { return a.processes == b.processes && a.fds == b.fds && a.threads == b.threads; }
  // Nothing has grown. Less than before is no loss: a driver's workers end when they have had no work for a while.
  [[nodiscard]] bool is_within(const Resources& before) const {
    return processes == before.processes && fds <= before.fds && threads <= before.threads;
  }
  [[nodiscard]] std::string explain() const;
};

struct BrokerOptions {
  std::string program{};                             // empty: the build's mpsbroker
  std::string driver{};                              // empty: test_driver()
  std::vector<std::string> arguments{};              // more of them, for mpsbroker
  std::map<std::string, std::string> environment{};  // more of it
};

// --driver's argument for this run of the tests: "cpu", or what MPSSHIM_TEST_DRIVER asks for.
[[nodiscard]] std::string test_driver();
[[nodiscard]] inline bool on_gpu() { return test_driver() != "cpu"; }

// A file of the build's bin folder, or of its lib folder. MPSSHIM_TEST_TREE names the build's folder where it is another one than at build time.
[[nodiscard]] std::string built_program(const std::string& name);
[[nodiscard]] std::string built_library(const std::string& name);

// A folder under TMPDIR that goes away with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class BrokerFixture {
 public:
  explicit BrokerFixture(const BrokerOptions& options = {});

  // Clients. `options.environment` goes over the one described above.
  [[nodiscard]] Program start(const std::string& program, ProgramOptions options = {}) const;
  [[nodiscard]] Outcome run(const std::string& program, ProgramOptions options = {}, Milliseconds limit = std::chrono::seconds(60)) const;
  [[nodiscard]] Outcome run(const std::string& program, const std::vector<std::string>& arguments) const;

  // mpsctl, with its arguments.
  [[nodiscard]] Outcome ctl(const std::vector<std::string>& arguments) const;
  // Pids: of the processes that the servers (executors) have now, and of the clients of all of them.
  [[nodiscard]] std::vector<pid_t> servers() const;
  [[nodiscard]] std::vector<pid_t> clients() const;
  [[nodiscard]] bool wait_for_clients(std::size_t count, Milliseconds limit = std::chrono::seconds(20)) const;

  [[nodiscard]] Program& process() { return broker_; }  // the control process
  [[nodiscard]] Resources resources() const;            // of the control process and all its descendants
  // Once the process that waits to be the executor's next life has come, and they stay as they are: sessions that have ended are taken down a
  // moment after they are no longer listed. After 10 s each whatever they are then.
  [[nodiscard]] Resources settled_resources() const;
  [[nodiscard]] std::filesystem::path pipe_dir() const { return folder_.path() / "pipe"; }
  // Everything the broker has said: its output and its log files.
  [[nodiscard]] std::string log() const;
  // What each thread of the control process and its descendants does: pid, name, the kernel's state of it and where in the kernel it waits. For
  // messages about what has not come in time.
  [[nodiscard]] std::string threads() const;

 private:
  TemporaryFolder folder_;
  Program broker_;  // after the folder: it ends first
};

// What a program that was built without sanitizers needs to load a library that was built with them: its runtime as the first library. Empty
// in a build without.
[[nodiscard]] std::map<std::string, std::string> sanitizer_environment();
// The environment of a client of the broker in `pipe_dir`.
[[nodiscard]] std::map<std::string, std::string> client_environment(const std::filesystem::path& pipe_dir);

}  // namespace mpsshim::test
