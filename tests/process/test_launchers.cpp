// SPDX-License-Identifier: Apache-2.0
// Jobs of Open MPI and MPICH whose ranks are started by mpsrun end as they do without it, however they end, and leave nothing: a rank that dies,
// Ctrl-C of mpirun, kill -9 of everything that launches.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

namespace fs = std::filesystem;

constexpr Milliseconds kMoreThanNative{5'000};
constexpr std::chrono::seconds kNothingLeft{10};

// One launcher's jobs. Ranks are a program that lies in the job's folder, so that a look at all command lines finds whatever has stayed.
class Job {
 public:
  explicit Job(const std::string& launcher, bool with_mpsrun) : with_mpsrun_(with_mpsrun), launcher_("/usr/bin/mpirun." + launcher) {
    fs::copy_file(with_mpsrun ? built_program("process1") : "/bin/sleep", rank_program());
    if (launcher == "openmpi") arguments_ = {"--allow-run-as-root", "--oversubscribe"};
  }

  // `first`: what rank 1 does instead of running for a minute.
  void start(const std::string& first) {
    const std::string script = "echo \"rank $$\"; case ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in 1) " + first + ";; esac; exec " + rank_program() + " 60";
    ProgramOptions options;
    options.arguments = arguments_;
    options.arguments.insert(options.arguments.end(), {"-n", "3"});
    if (with_mpsrun_) options.arguments.insert(options.arguments.end(), {built_program("mpsrun"), "--driver", test_driver()});
    options.arguments.insert(options.arguments.end(), {"/bin/sh", "-c", script});
    options.environment = sanitizer_environment();
    options.environment["CUDA_MPS_PIPE_DIRECTORY"] = folder_.path() / "pipe";
    options.without = {"LD_PRELOAD", "MPSSHIM_REQUIRE", "MPSSHIM_DISABLE"};
    program_.emplace(launcher_, options);
    const auto all_run = [this] { return (with_mpsrun_ ? clients() : ranks()) >= (has_left_out_one_ ? 2u : 3u); };
    has_left_out_one_ = first != "true";
    REQUIRE(eventually(std::chrono::seconds(40), [&] { return all_run() || !program_->running(); }));
  }
  [[nodiscard]] Program& program() { return *program_; }
  [[nodiscard]] std::size_t ranks() const { return processes("/rank").size(); }
  [[nodiscard]] std::vector<std::string> processes(const std::string& in_folder = "") const {
    std::vector<std::string> found;
    for (const auto& process : fs::directory_iterator("/proc")) {
      const std::string name = process.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ifstream file(process.path() / "cmdline");
      std::ostringstream text;  // a stream that takes errors: the process may be gone by now
      text << file.rdbuf();
      const std::string line = text.str();
      if (line.starts_with("mpirun") || line.starts_with(launcher_)) continue;
      if (in_folder.empty() ? line.find(folder_.path().string()) != std::string::npos : line.starts_with(rank_program())) found.push_back(name);
    }
    return found;
  }
  // mpirun, its proxies, and the ranks, which are what mpsrun has become.
  void kill_all_launchers() const {
    std::vector<pid_t> family{program_->pid()};
    for (std::size_t i = 0; i < family.size(); ++i) {
      std::ifstream children("/proc/" + std::to_string(family[i]) + "/task/" + std::to_string(family[i]) + "/children");
      family.insert(family.end(), std::istream_iterator<pid_t>(children), {});
    }
    for (const pid_t pid : family) ::kill(pid, SIGKILL);
  }

 private:
  [[nodiscard]] std::string rank_program() const { return folder_.path() / "rank"; }
  [[nodiscard]] std::size_t clients() const {
    ProgramOptions options;
    options.arguments = {"--pipe-dir", folder_.path() / "pipe", "ps"};
    std::istringstream lines(run_program(built_program("mpsctl"), options, std::chrono::seconds(20)).output);
    return static_cast<std::size_t>(std::max<std::ptrdiff_t>(std::distance(std::istream_iterator<Line>(lines), {}) - 1, 0));
  }
  struct Line : std::string {
    friend std::istream& operator>>(std::istream& in, Line& line) { return std::getline(in, static_cast<std::string&>(line)); }
  };

  const bool with_mpsrun_;
  const std::string launcher_;
  bool has_left_out_one_ = false;
  std::vector<std::string> arguments_;
  TemporaryFolder folder_;
  std::optional<Program> program_;
};

// How long after `end` mpirun is over.
template <typename End>
Milliseconds time_to_end(Job& job, End end) {
  const auto began = std::chrono::steady_clock::now();
  end(job);
  const Outcome& outcome = job.program().wait(std::chrono::seconds(50));
  INFO(outcome.explain());
  REQUIRE_FALSE(outcome.timed_out);
  return std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - began);
}

template <typename End>
void require_end_as_natively(const std::string& launcher, const std::string& first, End end) {
  if (access(("/usr/bin/mpirun." + launcher).c_str(), X_OK) != 0) MPSSHIM_SKIP("mpirun." + launcher + " is not installed (openmpi-bin, mpich)");
  if (geteuid() == 0 && launcher == "openmpi") setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  Job native(launcher, false);
  native.start(first);
  const Milliseconds natively = time_to_end(native, end);
  Job ours(launcher, true);
  ours.start(first);
  const Milliseconds took = time_to_end(ours, end);
  INFO(launcher << ": natively " << natively.count() << " ms, with mpsrun " << took.count() << " ms");
  CHECK(took <= natively + kMoreThanNative);
  const bool nothing_left = eventually(kNothingLeft, [&] { return ours.processes().empty(); });
  for (const std::string& process : ours.processes()) UNSCOPED_INFO("left: " << process);
  CHECK(nothing_left);
}

constexpr const char* kDies = "sleep 1; kill -KILL $$";
void nothing(Job&) {}
void interrupt(Job& job) { job.program().send(SIGINT); }
void kill_all(Job& job) { job.kill_all_launchers(); }

}  // namespace

TEST_CASE("Open MPI: a rank that dies ends the job as natively") { require_end_as_natively("openmpi", kDies, nothing); }
TEST_CASE("Open MPI: Ctrl-C of mpirun ends the job as natively") { require_end_as_natively("openmpi", "true", interrupt); }
TEST_CASE("Open MPI: kill -9 of all launchers leaves nothing") { require_end_as_natively("openmpi", "true", kill_all); }
TEST_CASE("MPICH: a rank that dies ends the job as natively") { require_end_as_natively("mpich", kDies, nothing); }
TEST_CASE("MPICH: Ctrl-C of mpirun ends the job as natively") { require_end_as_natively("mpich", "true", interrupt); }
TEST_CASE("MPICH: kill -9 of all launchers leaves nothing") { require_end_as_natively("mpich", "true", kill_all); }
