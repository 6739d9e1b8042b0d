// SPDX-License-Identifier: Apache-2.0
// Images that are made to be read badly: they cost their client an error, and the process that reads them, which is nobody else's.
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/hostile/broker_processes.hpp"
#include "tests/hostile/scene.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr const char* kInvalidImage = "200";
constexpr const char* kOutOfMemory = "2";

pid_t await_compiler(Scene& scene, pid_t other_than = 0) { return await_process(scene, "--compiler", other_than); }

}  // namespace

TEST_CASE("images that crash their reader cost no executor and nobody else anything") {
  Scene scene({"--test-image-faults"});
  Client hostile = scene.hostile();
  const std::string invalid = kInvalidImage;
  CHECK(scene.attack(hostile, "image crash 3") == "ok " + invalid + " " + invalid + " " + invalid);
  CHECK(log_has(scene, "the process that reads images was ended by signal 11 (Segmentation fault) while it read image "));
  CHECK(log_has(scene, "; another one tries again, once."));
  // The same client's next image is read, by a new process, as is a newcomer's.
  CHECK(scene.attack(hostile, "modules 2") == "ok 2");
  scene.require_newcomer_served();
  scene.end(hostile);
  scene.require_all_back("crashes", {4, 1 << 20});
}

TEST_CASE("images that take for ever to read are given up, and others' come behind") {
  Scene scene({"--test-image-faults", "--test-image-ms", "300"});
  Client hostile = scene.hostile();
  CHECK(scene.attack(hostile, "image hang 2") == std::string("ok ") + kInvalidImage + " " + kInvalidImage);
  CHECK(log_has(scene, " took longer to read than "));
  // One that hangs stands in front of a newcomer's own.
  hostile.begin("image hang 1");
  scene.require_newcomer_served();
  CHECK(hostile.answer() == std::string("ok ") + kInvalidImage);
  scene.end(hostile);
  scene.require_all_back("images without an end");
}

TEST_CASE("images that take memory without end have a limit") {
  if (!sanitizer_environment().empty()) MPSSHIM_SKIP("sanitizers need address space without limit");
  Scene scene({"--test-image-faults"});
  Client hostile = scene.hostile();
  CHECK(scene.attack(hostile, "image fill 1") == std::string("ok ") + kOutOfMemory);
  CHECK(log_has(scene, " cannot be read within 3072 MiB; it is refused."));
  scene.end(hostile);
  scene.require_all_back("images that fill memory");
}

TEST_CASE("a client that goes while its image is read leaves nothing") {
  Scene scene({"--test-image-faults"});
  Client hostile = scene.hostile();
  hostile.begin("image hang 1");
  (void)await_compiler(scene);
  scene.require_unhurt("an image that is read");
  scene.end(hostile);
  scene.require_newcomer_served();
  scene.require_all_back("a client that went");
}

TEST_CASE("little that is unpacked to much is refused in little memory") {
  Scene scene({"--idle-compiler-ms", "3000"});
  const auto most = [&] {
    long mebibytes = mebibytes_at_most(scene.broker().process().pid());
    for (const pid_t server : scene.broker().servers()) mebibytes += mebibytes_at_most(server);
    return mebibytes;
  };
  const long before = most();
  Client hostile = scene.hostile();
  std::string command;
  SECTION("38 KB that say they are 5 GB") { command = "large_entry 5368709120"; }
  SECTION("38 KB that say they are 1.1 GB, and are") { command = "large_entry " + std::to_string(std::uint64_t{1'100} << 20); }
  SECTION("38 KB of objects, 1 GB together") { command = "many_objects 33"; }
  SECTION("the same as a linker's input") { command = "linked 33"; }
  SECTION("180 KB of objects, 5 GB together") { command = "many_objects 160"; }
  CHECK(scene.attack(hostile, command) == std::string("ok ") + kInvalidImage);
  const pid_t compiler = await_compiler(scene);
  const long compiler_mebibytes = mebibytes_at_most(compiler);
  INFO("compiler process " << compiler_mebibytes << " MiB at most, the others " << before << " -> " << most() << " MiB\n" << scene.broker().log());
  if (sanitizer_environment().empty()) {
    CHECK(compiler_mebibytes < 80);
    CHECK(most() < before + (on_gpu() ? 64 : 16));  // NVIDIA's driver grows by itself meanwhile
  }
  scene.end(hostile);
  scene.require_all_back(command);
}

TEST_CASE("a compiler process that is killed in a job costs that job one attempt") {
  Scene scene({"--test-image-faults"});
  Client hostile = scene.hostile();
  hostile.begin("image slow 1");
  const pid_t first = await_compiler(scene);
  scene.require_unhurt("an image that is read");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  kill(first, SIGKILL);
  CHECK(hostile.answer() == "ok 0");  // by the next one
  hostile.begin("image hang 1");
  const pid_t second = await_compiler(scene, first);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  kill(second, SIGKILL);
  const pid_t third = await_compiler(scene, second);
  scene.require_unhurt("an image that is read again");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  kill(third, SIGKILL);
  CHECK(hostile.answer() == std::string("ok ") + kInvalidImage);
  CHECK(log_has(scene, "the process that reads images was ended by signal 9 (Killed) while it read image "));
  CHECK(scene.attack(hostile, "modules 1") == "ok 1");
  scene.end(hostile);
  scene.require_all_back("kills", {4, 1 << 20});
}

TEST_CASE("a compiler process has no rights, no files, and few system calls") {
  if (!sanitizer_environment().empty()) MPSSHIM_SKIP("sanitizers need system calls of their own");
  Scene scene({"--test-image-faults", "--idle-compiler-ms", "2000"});
  Client hostile = scene.hostile();
  CHECK(scene.attack(hostile, "modules 1") == "ok 1");
  const pid_t compiler = await_compiler(scene);
  CHECK(status_of(compiler, "NoNewPrivs") == "1");
  CHECK(status_of(compiler, "Seccomp") == "2");
  CHECK(status_of(compiler, "CapEff") == "0000000000000000");
  CHECK(status_of(compiler, "Uid") != "0");
  std::error_code error;
  int sockets = 0;
  int others = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(compiler) + "/fd", error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.starts_with("socket:")) {
      ++sockets;
    } else if (target != "/dev/null") {
      ++others;
    }
  }
  if (!error) {  // who may look
    CHECK(sockets == 1);
    CHECK(others == 0);
  }
  scene.end(hostile);
  scene.require_all_back("a look", {4, 1 << 20});
}
