// SPDX-License-Identifier: Apache-2.0
// Without a broker every call jumps to the real driver: here one that answers what no other would.
#include <cstdlib>
#include <filesystem>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "gen/api_declarations.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/interposer/scripted_broker.hpp"

using namespace mpsshim;
using namespace mpsshim::test;

#define API(name) library.get<decltype(interposer::api::name)>(#name)

namespace {

const std::string kFakeDriver = MPSSHIM_FAKE_DRIVER;

void expect_fake_driver(const Report& report, const Library& library) {
  int value = 0;
  report.equal(API(cuDriverGetVersion)(&value), CUDA_SUCCESS, "cuDriverGetVersion");
  report.equal(value, 4711, "the real driver's version");
  report.equal(API(cuDeviceGetCount)(&value), CUDA_SUCCESS, "cuDeviceGetCount");
  report.equal(value, 77, "the real driver's count");
}

}  // namespace

TEST_CASE("calls jump to the driver named by MPSSHIM_REAL_DRIVER") {
  const ChildEnd end = in_child("/nonexistent", "MPSSHIM_REAL_DRIVER=" + kFakeDriver, [&](const Report& report, const Library& library) {
    expect_fake_driver(report, library);
    report.equal(API(cuStreamQuery)(nullptr), 1000, "cuStreamQuery");
    const auto per_thread = library.get<CUresult(CUstream)>("cuStreamQuery_ptsz");
    report.equal(per_thread(nullptr), 2002, "cuStreamQuery_ptsz: the driver's own, for the thread's stream");
    report.equal(per_thread(CU_STREAM_LEGACY), 2001, "cuStreamQuery_ptsz of the legacy stream");
    CUdeviceptr pointer = 0;
    report.equal(API(cuMemAlloc_v2)(&pointer, 16), CUDA_ERROR_NOT_SUPPORTED, "a function this driver lacks");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
  CHECK(end.errors.empty());
}

TEST_CASE("the driver is found in LD_LIBRARY_PATH, never this library or a copy of it") {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("mpsshim-pass-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder / "copy");
  std::filesystem::create_directories(folder / "driver");
  std::filesystem::copy_file(MPSSHIM_LIBRARY, folder / "copy/libcuda.so.1");
  std::filesystem::create_symlink(kFakeDriver, folder / "driver/libcuda.so.1");
  const std::string path = std::string("LD_LIBRARY_PATH=") + (folder / "copy").string() + ":" + (folder / "driver").string();
  const ChildEnd end = in_child("/nonexistent", path, expect_fake_driver);
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
  std::filesystem::remove_all(folder);
}

TEST_CASE("this library is no real driver, whatever names it") {
  const ChildEnd end = in_child("/nonexistent", std::string("MPSSHIM_REAL_DRIVER=") + MPSSHIM_LIBRARY,
                                [&](const Report& report, const Library& library) { report.equal(API(cuInit)(0), CUDA_ERROR_NO_DEVICE, "cuInit"); });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
}

TEST_CASE("MPSSHIM_DISABLE goes past a broker") {
  const ScriptedBroker broker;
  const ChildEnd end = in_child(broker.directory(), "MPSSHIM_DISABLE=1 MPSSHIM_REAL_DRIVER=" + kFakeDriver, expect_fake_driver);
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
  CHECK(broker.hellos() == 0);
}

// It runs itself again with a real user that is not the effective one, which the kernel tells to the C library as it does for a set-uid file.
TEST_CASE("a program with more rights than its caller is not told by the environment what to load") {
  constexpr const char* kAgain = "MPSSHIM_TEST_PRIVILEGED";
  if (std::getenv(kAgain) != nullptr) {
    const ChildEnd end = in_child("/nonexistent", "MPSSHIM_REAL_DRIVER=" + kFakeDriver, [&](const Report& report, const Library& library) {
      int version = 0;
      report.equal(API(cuDriverGetVersion)(&version), CUDA_SUCCESS, "cuDriverGetVersion");
      report.expect(version != 4711, "the driver that the environment names was loaded");
    });
    INFO(end.complaints << end.errors);
    CHECK(end.fine());
    return;
  }
  if (geteuid() != 0) MPSSHIM_SKIP("only root can have another real user");
  const pid_t child = fork();
  if (child == 0) {
    setenv(kAgain, "1", 1);
    if (setresuid(65534, 0, 0) != 0) _exit(3);
    execl("/proc/self/exe", "interposer_pass_through", "a program with more rights than its caller is not told by the environment what to load",
          static_cast<char*>(nullptr));
    _exit(4);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("a forked child passes through like its parent") {
  const ChildEnd end = in_child("/nonexistent", "MPSSHIM_REAL_DRIVER=" + kFakeDriver, [&](const Report& report, const Library& library) {
    report.equal(API(cuInit)(0), CUDA_SUCCESS, "cuInit");
    const pid_t child = fork();
    if (child == 0) {
      expect_fake_driver(report, library);
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    report.equal(status, 0, "the grandchild's end");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
}

TEST_CASE("MPSSHIM_DEBUG=calls shows calls with arguments and results") {
  const ChildEnd end = in_child("/nonexistent", "MPSSHIM_DEBUG=calls MPSSHIM_REAL_DRIVER=" + kFakeDriver,
                                [&](const Report&, const Library& library) { (void)API(cuInit)(5); });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
  CHECK(end.errors.find("cuInit(5) = 1\n") != std::string::npos);
}
