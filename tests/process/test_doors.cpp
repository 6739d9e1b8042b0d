// SPDX-License-Identifier: Apache-2.0
// Every door leads to the broker: however a program opens the driver, it gets the library that it was preloaded with. And every other load
// is the loader's, as if the library were not there.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gnu/libc-version.h>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;
namespace fs = std::filesystem;

namespace {

constexpr const char* kUs = "libmpsshim.so cuDriverGetVersion 0";

// A folder as NVIDIA's driver has it, all of its names being the decoy's.
class DriverFolder {
 public:
  DriverFolder() {
    fs::create_directories(path());
    fs::copy_file(built_library("doors/decoy/libcuda.so.1"), path() / "libcuda.so.580.65.06");
    fs::create_symlink("libcuda.so.580.65.06", path() / "libcuda.so.1");
    fs::create_symlink("libcuda.so.1", path() / "libcuda.so");
    fs::create_symlink(path() / "libcuda.so.1", path() / "another_name.so");
    fs::create_symlink("another_name.so", path() / "yet_another.so");
    fs::create_directory_symlink(path(), folder_.path() / "linked");
    fs::copy_file(path() / "libcuda.so.580.65.06", path() / "a_copy.so");
  }
  [[nodiscard]] fs::path path() const { return folder_.path() / "nvidia"; }
  [[nodiscard]] fs::path linked() const { return folder_.path() / "linked"; }

 private:
  TemporaryFolder folder_;
};

struct Load {
  std::string way;
  std::string name;
};

std::vector<Load> all_loads_of_the_driver(const DriverFolder& driver) {
  std::vector<Load> loads;
  for (const char* way : {"base", "space", "new", "noload", "library", "threads", "close"}) {
    for (const char* name : {"libcuda.so.1", "libcuda.so", "libcuda.so.580.65.06"}) {
      loads.push_back({way, name});
      loads.push_back({way, driver.path() / name});
      loads.push_back({way, driver.linked() / name});
    }
    loads.push_back({way, driver.path() / "another_name.so"});
    loads.push_back({way, driver.path() / "yet_another.so"});
    loads.push_back({way, "/nonexistent/libcuda.so.1"});  // a driver that is not installed at all
  }
  return loads;
}

ProgramOptions opening(const std::vector<Load>& loads, std::map<std::string, std::string> environment, const DriverFolder& driver) {
  ProgramOptions options;
  for (const Load& load : loads) {
    options.arguments.push_back(load.way);
    options.arguments.push_back(load.name);
  }
  options.environment = std::move(environment);
  options.environment["LD_LIBRARY_PATH"] = driver.path();  // where an ordinary search finds the decoy
  options.without = {"LD_PRELOAD"};
  return options;
}

void require_us(const Outcome& outcome, const std::vector<Load>& loads, int init) {
  std::istringstream lines(outcome.output);
  const std::string ending = " cuInit " + std::to_string(init);
  for (const Load& load : loads) {
    std::string line;
    std::getline(lines, line);
    INFO(load.way << " " << load.name << ": " << line << "\n" << outcome.errors);
    CHECK(line.starts_with(load.way + ": "));
    CHECK(line.ends_with(ending));
    if (load.way != "close") CHECK(line.find(kUs) != std::string::npos);
  }
  CHECK(outcome.output.find("decoy") == std::string::npos);
}

}  // namespace

TEST_CASE("every load of the driver gets the preloaded library, and its clear error without a broker") {
  const DriverFolder driver;
  const TemporaryFolder nobody;
  const std::vector<Load> loads = all_loads_of_the_driver(driver);
  for (const Load& load : loads) {  // each in a process of its own: nothing is loaded yet
    const Outcome outcome = run_program(built_program("opens"), opening({load}, client_environment(nobody.path()), driver));
    REQUIRE(outcome.ok());
    require_us(outcome, {load}, 805);  // CUDA_ERROR_MPS_CONNECTION_FAILED
    CHECK(outcome.errors.find("MPSSHIM_REQUIRE") != std::string::npos);
  }
}

TEST_CASE("every load of the driver reaches the broker") {
  const DriverFolder driver;
  const BrokerFixture broker;
  const std::vector<Load> loads = all_loads_of_the_driver(driver);
  for (const Load& load : loads) {
    if (load.way == "new" && load.name != "libcuda.so") continue;  // each is a library of its own, which settles anew
    const Outcome outcome = run_program(built_program("opens"), opening({load}, client_environment(broker.pipe_dir()), driver));
    REQUIRE(outcome.ok());
    require_us(outcome, {load}, 0);
  }
}

TEST_CASE("without the library the same loads get what lies there, so the decoy is one") {
  const DriverFolder driver;
  const std::vector<Load> loads = {{"base", "libcuda.so"}, {"base", driver.path() / "libcuda.so.1"}, {"new", driver.path() / "yet_another.so"}};
  const Outcome outcome = run_program(built_program("opens"), opening(loads, {}, driver));
  INFO(outcome.explain());
  CHECK(outcome.output.find("decoy: cuInit") != std::string::npos);
  CHECK(outcome.output.find(kUs) == std::string::npos);
}

TEST_CASE("in a process without a broker the handle leads to the real driver") {
  const DriverFolder driver;
  const TemporaryFolder nobody;
  for (const char* set : {"MPSSHIM_DISABLE", "MPSSHIM_REQUIRE"}) {
    std::map<std::string, std::string> environment = client_environment(nobody.path());
    environment["MPSSHIM_REQUIRE"] = "0";
    if (set == std::string("MPSSHIM_DISABLE")) environment[set] = "1";
    for (const std::string& name : {std::string("libcuda.so"), (driver.path() / "libcuda.so.1").string()}) {
      const Outcome outcome = run_program(built_program("opens"), opening({{"base", name}}, environment, driver));
      INFO(set << " " << name << ": " << outcome.explain());
      CHECK(outcome.output == "decoy: cuInit\nbase: " + fs::path(built_library("libmpsshim.so")).parent_path().filename().string() +
                                  "/libmpsshim.so cuDriverGetVersion 0 (4711) cuInit 0\n");
    }
  }
}

TEST_CASE("a copy of the driver under a name of its own is not taken for it") {
  const DriverFolder driver;
  const TemporaryFolder nobody;
  const Outcome outcome =
      run_program(built_program("opens"), opening({{"base", driver.path() / "a_copy.so"}}, client_environment(nobody.path()), driver));
  INFO(outcome.explain());
  CHECK(outcome.ok());
  CHECK(outcome.output.find("decoy: cuInit") != std::string::npos);
}

TEST_CASE("every other load is the loader's own") {
  const DriverFolder driver;
  const TemporaryFolder nobody;
  const std::vector<Load> loads = {
      {"plain", "NULL"},
      {"plain", "libfound_by_program.so"},    // by the program's run path alone
      {"library", "libfound_by_library.so"},  // by the library's, $ORIGIN/inner
      {"library", "libfound_by_program.so"},  // which the library does not have, but it is loaded
      {"plain", "libfound_by_library.so"},
      {"plain", "$ORIGIN/../lib/doors/inner/libfound_by_library.so"},
      {"library", "$ORIGIN/inner/libfound_by_library.so"},
      {"new", "libfound_by_program.so"},
      {"noload", "libfound_by_program.so"},
      {"noload", "libutil.so.1"},
      {"plain", "libnobody_has_this.so"},
      {"plain", "/nonexistent/library.so"},
      {"plain", ""},
      {"plain", "/etc/passwd"},
      {"plain", "/etc"},
      {"nomode", "libm.so.6"},
      {"new", "libm.so.6"},
      {"new", "libnobody_has_this.so"},
      {"space", "libm.so.6"},
      {"new", "NULL"},
      {"plain", "libcuda.so.1.old"},
      {"plain", "libcudart_of_nobody.so"},
  };
  for (const char* program : {"opens", "opens_by_rpath"}) {
    for (const Load& load : loads) {
      const auto outcome_of = [&](bool preloaded) {
        const auto environment = preloaded ? client_environment(nobody.path()) : std::map<std::string, std::string>{};
        return run_program(built_program(program), opening({load}, environment, driver));
      };
      const Outcome with = outcome_of(true);
      const Outcome without = outcome_of(false);
      INFO(program << " " << load.way << " " << load.name << "\nwith:    " << with.explain() << "without: " << without.explain());
      REQUIRE(without.ok());
      CHECK(with.exit_code == without.exit_code);
      CHECK(with.output == without.output);
      CHECK(with.errors == without.errors);
    }
    const Outcome found = run_program(built_program(program), opening({loads[1], loads[2]}, client_environment(nobody.path()), driver));
    INFO(found.explain());
    CHECK(found.output == "plain: doors/libfound_by_program.so\nlibrary: inner/libfound_by_library.so\n");
  }
}

TEST_CASE("the broker does not take the library for a driver") {
  const TemporaryFolder folder;
  fs::create_symlink(built_library("libcuda_cpu.so"), folder.path() / "libcuda.so.1");
  BrokerOptions options;
  options.driver = "cuda";
  // As in a program of mpsrun that starts a broker.
  options.environment["LD_LIBRARY_PATH"] = built_library("libcuda") + ":" + folder.path().string();
  options.environment["LD_PRELOAD"] = built_library("libmpsshim.so");
  const BrokerFixture broker(options);
  const Outcome outcome = broker.run("process1");
  INFO(outcome.explain() << broker.log());
  CHECK(outcome.ok());
  CHECK(broker.log().find("CPU reference device with libcuda.so.1") != std::string::npos);
}

TEST_CASE("a broker that is told to take the library for a driver says what it is") {
  const TemporaryFolder folder;
  for (const std::string& driver : {built_library("libmpsshim.so"), built_library("libcuda/libcuda.so.1")}) {
    ProgramOptions options;
    options.arguments = {"-f", "--driver", driver, "--pipe-dir", folder.path() / "pipe"};
    const Outcome outcome = run_program(built_program("mpsbroker"), options);
    INFO(outcome.explain());
    CHECK_FALSE(outcome.ok());
    CHECK_FALSE(outcome.timed_out);
    CHECK((outcome.output + outcome.errors).find("look at server.log") != std::string::npos);
    std::ifstream file(folder.path() / "pipe/server.log");
    const std::string log(std::istreambuf_iterator<char>(file), {});
    INFO(log);
    CHECK(log.find(driver + " is libmpsshim.so, which is for clients") != std::string::npos);
  }
}

TEST_CASE("a static program that loads the library is told that it cannot be served") {
  if (!fs::exists(built_program("static_program"))) MPSSHIM_SKIP("the C library cannot be linked statically here");
  // What a static program opens brings this machine's C library, which takes its state from the program's: of another release that is laid out in
  // another way, and the C library divides by 0 (2.36 and 2.41) or gives up (2.36 and 2.31) before anything of ours is called.
  ProgramOptions question;
  question.arguments = {"release"};
  const Outcome linked_with = run_program(built_program("static_program"), question);
  REQUIRE(linked_with.ok());
  if (linked_with.output != gnu_get_libc_version() + std::string("\n"))
    MPSSHIM_SKIP("the static program has another C library than this machine, and opens no libraries here");
  const BrokerFixture broker;
  ProgramOptions options;
  options.environment = client_environment(broker.pipe_dir());
  options.environment["LD_LIBRARY_PATH"] = built_library("libcuda");
  const Outcome outcome = run_program(built_program("static_program"), options);
  INFO(outcome.explain() << broker.log());
  CHECK(outcome.ok());
  CHECK(outcome.output == "cuDriverGetVersion 0 cuInit 801 cuCtxSetCurrent 801\n");
  CHECK(outcome.errors.find("is linked statically") != std::string::npos);
  CHECK(outcome.errors.find("link it dynamically") != std::string::npos);
}
