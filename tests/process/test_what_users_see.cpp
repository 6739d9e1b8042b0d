// SPDX-License-Identifier: Apache-2.0
// What stands on the terminal when a broker does not serve a program of the CUDA runtime: the rows of docs/what-users-see.md, the runtime's line and
// ours. Never the runtime's "driver version is insufficient", which would send the user after a driver.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;
namespace fs = std::filesystem;

namespace {

struct Row {
  std::string runtime;  // cudaGetErrorString and the error's name
  std::string ours;
  std::string remedy;
};

const std::string kFailedToConnect = "MPS client failed to connect to the MPS control daemon or the MPS server (cudaErrorMpsConnectionFailed)";
const std::string kBusy = "CUDA-capable device(s) is/are busy or unavailable (cudaErrorDevicesUnavailable)";

void require_row(const Outcome& outcome, const Row& row) {
  INFO(outcome.explain());
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.errors.find("failed: " + row.runtime) != std::string::npos);
  CHECK(outcome.errors.find("mpsshim[") == outcome.errors.rfind("mpsshim["));  // one line of ours
  CHECK(outcome.errors.find(row.ours) != std::string::npos);
  CHECK(outcome.errors.find(row.remedy) != std::string::npos);
  CHECK(outcome.errors.find("insufficient") == std::string::npos);
}

// As a user who is not the broker's. That user need not be able to read the build.
Outcome run_as_nobody(const BrokerFixture& broker) {
  const TemporaryFolder folder;
  REQUIRE(chmod(folder.path().c_str(), 0755) == 0);
  for (const std::string& file : {built_program("process1"), built_library("libmpsshim.so")}) {
    fs::copy(file, folder.path() / fs::path(file).filename());
    REQUIRE(chmod((folder.path() / fs::path(file).filename()).c_str(), 0755) == 0);
  }
  ProgramOptions options;
  options.arguments = {"--reuid", "65534", "--clear-groups", "env"};
  for (auto [name, value] : client_environment(broker.pipe_dir())) {
    if (const std::size_t at = value.find(built_library("libmpsshim.so")); at != std::string::npos) {
      value.replace(at, std::string::npos, folder.path() / "libmpsshim.so");
    }
    options.arguments.push_back(name + "=" + value);
  }
  options.arguments.push_back(folder.path() / "process1");
  return run_program("/usr/bin/setpriv", options);
}

Program start_first_client(const BrokerFixture& broker) {
  ProgramOptions options;
  options.arguments = {"60"};
  Program first = broker.start("process1", options);
  REQUIRE(broker.wait_for_clients(1));
  return first;
}

}  // namespace

TEST_CASE("users see that no broker answers") {
  const TemporaryFolder nobody;
  ProgramOptions options;
  options.environment = client_environment(nobody.path());
  require_row(run_program(built_program("process1"), options),
              {kFailedToConnect, "No broker answers at " + nobody.path().string(), "start mpsbroker"});
}

TEST_CASE("users see that there is neither a broker nor a driver") {
  const TemporaryFolder nobody;
  ProgramOptions options;
  options.environment = client_environment(nobody.path());
  options.environment["MPSSHIM_REQUIRE"] = "0";
  options.environment["MPSSHIM_REAL_DRIVER"] = "/nonexistent/libcuda.so.1";
  const Outcome outcome = run_program(built_program("process1"), options);
  INFO(outcome.explain());
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.errors.find("failed: no CUDA-capable device is detected (cudaErrorNoDevice)") != std::string::npos);
  CHECK(outcome.errors.find("MPSSHIM_REAL_DRIVER=/nonexistent/libcuda.so.1 is not a CUDA driver") != std::string::npos);
  CHECK(outcome.errors.find("start mpsbroker") != std::string::npos);
}

TEST_CASE("users see that they may not use the broker's socket") {
  if (geteuid() != 0) MPSSHIM_SKIP("only root can become another user");
  const BrokerFixture broker;
  REQUIRE(chmod(broker.pipe_dir().parent_path().c_str(), 0755) == 0);
  REQUIRE(chmod(broker.pipe_dir().c_str(), 0755) == 0);
  require_row(run_as_nobody(broker), {kFailedToConnect, "User 65534 may not use the broker at " + broker.pipe_dir().string(), "--multiuser-server"});
}

TEST_CASE("users see that the broker serves another user") {
  if (geteuid() != 0) MPSSHIM_SKIP("only root can become another user");
  const BrokerFixture broker;
  REQUIRE(chmod(broker.pipe_dir().parent_path().c_str(), 0755) == 0);
  REQUIRE(chmod(broker.pipe_dir().c_str(), 0755) == 0);
  REQUIRE(chmod((broker.pipe_dir() / "mpsshim.sock").c_str(), 0666) == 0);
  require_row(run_as_nobody(broker), {kFailedToConnect, "serves user 0 alone, not user 65534", "start a broker of your own"});
}

TEST_CASE("users see that the broker is full, and a program that comes later is served") {
  BrokerOptions options;
  options.arguments = {"--max-clients", "1"};
  const BrokerFixture broker(options);
  Program first = start_first_client(broker);
  require_row(broker.run("process1"), {kBusy, "serves as many clients as it may", "--max-clients"});
  first.send(SIGKILL);
  REQUIRE(broker.wait_for_clients(0));
  const Outcome later = broker.run("process1");
  INFO(later.explain());
  CHECK(later.ok());
}

TEST_CASE("users see that the broker is stopping") {
  const BrokerFixture broker;
  Program first = start_first_client(broker);
  ProgramOptions quit;
  quit.arguments = {"--pipe-dir", broker.pipe_dir(), "quit"};
  Program quitter(built_program("mpsctl"), quit);  // it waits for the first to leave
  REQUIRE(
      eventually(std::chrono::seconds(10), [&] { return broker.log().find("The broker quits once its 1 client has left") != std::string::npos; }));
  require_row(broker.run("process1"), {kBusy, "it is stopping, or its executor is not ready", "Start this program again"});
  CHECK(quitter.running());
  first.send(SIGKILL);
  const Outcome& outcome = quitter.wait(std::chrono::seconds(20));
  INFO(outcome.explain());
  CHECK(outcome.ok());
}

// docs/deployment.md, "Guard against bypass". The driver of the CPU stands for NVIDIA's, in the broker and beside it.
TEST_CASE("on a device that takes one process at a time nobody goes past the broker") {
  if (on_gpu()) MPSSHIM_SKIP("the GPU's compute mode is not the test's to set");
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "gpu");
  BrokerOptions options;
  options.environment = {{"MPSSHIM_CPU_EXCLUSIVE", folder.path() / "gpu"}};
  const BrokerFixture broker(options);
  CHECK(broker.run("vector_add_drv").ok());
  ProgramOptions past;
  past.environment = {{"MPSSHIM_DISABLE", "1"}, {"MPSSHIM_REAL_DRIVER", built_library("libcuda_cpu.so")}};
  CHECK(broker.run("vector_add_drv", past).ok());  // the device is another one than the broker's
  past.environment["MPSSHIM_CPU_EXCLUSIVE"] = folder.path() / "gpu";
  const Outcome refused = broker.run("vector_add_drv", past);
  INFO(refused.explain());
  CHECK(refused.exit_code == 1);
  CHECK(refused.errors.find("CUDA_ERROR_DEVICE_UNAVAILABLE") != std::string::npos);
  CHECK(broker.run("vector_add_drv").ok());
}
