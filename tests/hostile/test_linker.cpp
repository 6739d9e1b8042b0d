// SPDX-License-Identifier: Apache-2.0
// Texts at which the driver's compiler crashes, hangs, or takes all memory: they cost their client an error, and the process that links images.
// Scene::require_all_back says that the executor is the one of the beginning.
#include <csignal>
#include <string>
#include <thread>

#include "tests/hostile/broker_processes.hpp"
#include "tests/hostile/scene.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr const char* kInvalidPtx = "218";
constexpr const char* kOutOfMemory = "2";

pid_t await_linker(Scene& scene, pid_t other_than = 0) { return await_process(scene, "--linker", other_than); }

}  // namespace

TEST_CASE("texts that crash the driver's compiler cost no executor and nobody else anything") {
  Scene scene({"--test-image-faults"});
  Client hostile = scene.hostile();
  const std::string invalid = kInvalidPtx;
  CHECK(scene.attack(hostile, "text crash 3") == "ok " + invalid + " " + invalid + " " + invalid);
  CHECK(log_has(scene, "the process that links images was ended by signal 11 (Segmentation fault) while it linked image "));
  CHECK(log_has(scene, "; another one tries again, once."));
  CHECK(scene.attack(hostile, "modules 2") == "ok 2");
  scene.require_newcomer_served();
  scene.end(hostile);
  scene.require_all_back("crashes", {4, 1 << 20});
}

TEST_CASE("texts that take for ever to compile are given up, and others' come behind") {
  // The time that its process takes to begin counts, which a GPU with much else to do makes longer.
  const int seconds = on_gpu() ? 5 : 1;
  Scene scene({"--test-image-faults", "--link-s", std::to_string(seconds)});
  Client hostile = scene.hostile();
  CHECK(scene.attack(hostile, "text hang 1") == std::string("ok ") + kInvalidPtx);
  CHECK(log_has(scene, " took longer to link than " + std::to_string(seconds) + " s of the processor or " + std::to_string(2 * seconds) +
                           " s; it is refused."));
  hostile.begin("text hang 1");
  scene.require_newcomer_served();
  CHECK(hostile.answer() == std::string("ok ") + kInvalidPtx);
  scene.end(hostile);
  scene.require_all_back("texts without an end", {4, 1 << 20});
}

TEST_CASE("texts that take memory without end to compile have a limit") {
  if (!sanitizer_environment().empty()) MPSSHIM_SKIP("sanitizers need address space without limit");
  Scene scene({"--test-image-faults"});
  Client hostile = scene.hostile();
  CHECK(scene.attack(hostile, "text fill 1") == std::string("ok ") + kOutOfMemory);
  CHECK(log_has(scene, " cannot be linked within 4096 MiB; it is refused."));
  scene.end(hostile);
  scene.require_all_back("texts that fill memory", {4, 1 << 20});
}

TEST_CASE("a client's linker outlives the process that has it") {
  Scene scene({"--idle-linker-ms", "3000"});
  Client hostile = scene.hostile();
  CHECK(scene.attack(hostile, "link_begin") == "ok 0");
  CHECK(scene.attack(hostile, "link_add 1") == "ok 0");
  CHECK(scene.attack(hostile, "link_add 2") == "ok 0");
  const pid_t first = await_linker(scene);
  kill(first, SIGKILL);
  CHECK(scene.attack(hostile, "link_add 3") == "ok 0");
  const pid_t second = await_linker(scene, first);
  kill(second, SIGKILL);
  const std::string linked = scene.attack(hostile, "link_end");
  // The same without an end in between.
  CHECK(scene.attack(hostile, "link_begin") == "ok 0");
  for (const char* add : {"link_add 1", "link_add 2", "link_add 3"}) CHECK(scene.attack(hostile, add) == "ok 0");
  const pid_t third = await_linker(scene, second);
  CHECK(scene.attack(hostile, "link_end") == linked);
  CHECK(await_linker(scene) == third);
  CHECK(linked.rfind("ok 0 ", 0) == 0);
  CHECK(linked != "ok 0 0");
  scene.end(hostile);
  scene.require_all_back("linkers", {4, 1 << 20});
}

// The CPU driver's linker makes no machine code, so a program of objects is linked at each replay, as one is whose machine code is no longer kept.
TEST_CASE("what was linked is linked again for the next life, by the linker process") {
  Scene scene;
  Client hostile = scene.hostile();
  CHECK(scene.attack(hostile, "two_objects") == "ok 0");
  const pid_t server = scene.broker().servers().front();
  kill(server, SIGKILL);
  INFO(scene.broker().log());
  CHECK(eventually(std::chrono::seconds(10), [&] { return log_has(scene, " loaded again"); }));
  CHECK_FALSE(log_has(scene, "of an earlier executor is lost"));
  scene.require_newcomer_served();
}

TEST_CASE("what was linked is linked again for a warm standby, by the linker process") {
  Scene scene({"--standby"});
  Client hostile = scene.hostile();
  CHECK(scene.attack(hostile, "two_objects") == "ok 0");
  INFO(scene.broker().log());
  CHECK(eventually(std::chrono::seconds(10), [&] { return log_has(scene, " loaded again"); }));
  CHECK_FALSE(log_has(scene, "of an earlier executor is lost"));
  scene.end(hostile);
  scene.require_all_back("a program of objects", {8, 4 << 20});
}

TEST_CASE("a client that goes while its text is compiled leaves nothing") {
  Scene scene({"--test-image-faults"});
  Client hostile = scene.hostile();
  hostile.begin("text hang 1");
  (void)await_linker(scene);
  scene.require_unhurt("a text that is compiled");
  scene.end(hostile);
  scene.require_newcomer_served();
  scene.require_all_back("a client that went", {4, 1 << 20});
}

TEST_CASE("a linker process keeps no rights that it does not need") {
  if (!sanitizer_environment().empty()) MPSSHIM_SKIP("sanitizers need system calls of their own");
  Scene scene({"--idle-linker-ms", "3000"});
  Client hostile = scene.hostile();
  CHECK(scene.attack(hostile, "modules 1") == "ok 1");
  const pid_t linker = await_linker(scene);
  CHECK(status_of(linker, "NoNewPrivs") == "1");
  CHECK(status_of(linker, "Seccomp") == "2");
  CHECK(status_of(linker, "CapEff") == "0000000000000000");
  scene.end(hostile);
  scene.require_all_back("a look", {4, 1 << 20});
}

// A GPU that takes one process at a time: no other can have a context beside the executor's.
TEST_CASE("where one process alone may have a context, nvJitLink compiles in a process of its own") {
  if (on_gpu()) MPSSHIM_SKIP("the compute mode of a real GPU is not ours to change");
  const TemporaryFolder folder;
  Scene scene({"--test-image-faults", "--ptx-compiler", built_library("libstand_in_nvjitlink.so")}, "",
              {{"MPSSHIM_CPU_EXCLUSIVE", folder.path() / "device"}});
  Client hostile = scene.hostile();
  const std::string invalid = kInvalidPtx;
  CHECK(scene.attack(hostile, "text crash 2") == "ok " + invalid + " " + invalid);
  CHECK(log_has(scene, "the process that links images was ended by signal 11 (Segmentation fault) while it linked image "));
  CHECK(scene.attack(hostile, "modules 2") == "ok 2");
  CHECK(scene.attack(hostile, "link_begin") == "ok 0");
  CHECK(scene.attack(hostile, "link_add 1") == "ok 0");
  CHECK(scene.attack(hostile, "link_end").rfind("ok 0 ", 0) == 0);
  CHECK_FALSE(log_has(scene, "PTX is compiled in this executor"));
  scene.require_newcomer_served();
  scene.end(hostile);
  scene.require_all_back("texts for nvJitLink", {4, 1 << 20});
}

TEST_CASE("where one process alone may have a context and there is no nvJitLink, the executor compiles, or nobody") {
  if (on_gpu()) MPSSHIM_SKIP("the compute mode of a real GPU is not ours to change");
  const TemporaryFolder folder;
  const bool is_asked_for = GENERATE(false, true);
  std::vector<std::string> arguments;
  if (is_asked_for) arguments = {"--ptx-compiler", folder.path() / "libnvJitLink.so.13"};
  BrokerOptions options;
  options.arguments = arguments;
  options.environment = {{"MPSSHIM_CPU_EXCLUSIVE", folder.path() / "device"}};
  const BrokerFixture broker(options);
  Client client = Client::begin(broker, "test_client");
  const std::string answer = client.answer();  // it has loaded a text by then
  INFO(answer << "\n" << broker.log());
  CHECK(answer.starts_with(is_asked_for ? "221 CUDA_ERROR_JIT_COMPILER_NOT_FOUND" : "ok"));
  CHECK((broker.log().find("PTX is compiled in this executor") == std::string::npos) == is_asked_for);
  if (is_asked_for) CHECK(broker.log().find("there is no " + arguments[1] + " of CUDA 13.0 or a later 13.x") != std::string::npos);
}
