// SPDX-License-Identifier: Apache-2.0
// The table of faults: a row here is a row of docs/reliability.md and a test case of test_reliability.cpp.
#include <signal.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/reliability/scenario.hpp"

namespace mpsshim::test {

namespace {

constexpr Stamp kLongestDeath = 5'000'000'000;

// A kernel of the guilty client does what `kind` says. It answers "STAMP ERROR", the stamp taken just before the launch.
std::function<void(Stage&)> kernel_fault(const std::string& kind) {
  return [kind](Stage& stage) {
    const std::string answer = stage.guilty->ask("fault " + kind);
    const std::size_t blank = answer.find(' ');
    if (answer.find_first_not_of("0123456789") != blank) throw std::runtime_error("the guilty client did not fault: " + answer);
    stage.struck_at = std::stoll(answer.substr(0, blank));
    stage.guilty_error = answer.substr(blank + 1);
  };
}

// A signal ends the guilty client while it does what `first` asks of it.
std::function<void(Stage&)> signalled(const std::string& first, int signal) {
  return [first, signal](Stage& stage) {
    if (const std::string answer = stage.guilty->ask(first); answer.rfind("ok", 0) != 0) throw std::runtime_error(first + ": " + answer);
    stage.struck_at = now_stamp();
    stage.guilty->program().send(signal);
    (void)stage.guilty->program().wait();
  };
}

// The process that has the context, and with it all clients' work.
std::function<void(Stage&)> server_signalled(int signal) {
  return [signal](Stage& stage) {
    const pid_t server = stage.side.server();
    if (server <= 0) throw std::runtime_error("no server is listed");
    stage.struck_at = now_stamp();
    ::kill(server, signal);
    // A client that calls before that is not idle.
    while (::kill(server, 0) == 0 && now_stamp() - stage.struck_at < kLongestDeath) std::this_thread::sleep_for(std::chrono::microseconds(100));
  };
}

}  // namespace

const std::vector<Fault>& all_faults() {
  static const std::vector<Fault> faults = {
      {"illegal address", kernel_fault("illegal_address"), {700}},
      {"misaligned access", kernel_fault("misaligned"), {716}},
      {"trap", kernel_fault("trap"), {719}},
      {"device assertion", kernel_fault("assertion"), {710}},
      {"stack overflow", kernel_fault("stack_overflow"), {700, 714, 717, 719}},  // devices differ: tests/conformance/test_faults.cpp
      {"illegal instruction", kernel_fault("illegal_instruction"), {715}},
      {"kill -9, idle", signalled("idle", SIGKILL), {}},
      {"kill -9, at work", signalled("work", SIGKILL), {}},
      {"kill -9, kernel without end", signalled("spin", SIGKILL), {}, false, false, true},
      {"Ctrl-C, kernel without end", signalled("spin", SIGINT), {}, false, false, true},
      {"crash (SIGSEGV), at work", signalled("work", SIGSEGV), {}},
      {"server process: SIGSEGV", server_signalled(SIGSEGV), {}, true},
      {"server process: SIGKILL", server_signalled(SIGKILL), {}, true},
  };
  return faults;
}

}  // namespace mpsshim::test
