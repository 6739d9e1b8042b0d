// SPDX-License-Identifier: Apache-2.0
#include "tests/process/programs/forks.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {

namespace {

constexpr unsigned kStaysSeconds = 60;

struct ChildResults {
  CUresult current, alloc, sync;
};

[[noreturn]] void be_child(int results_fd) {
  alarm(kStaysSeconds);  // a call that hangs is an end by SIGALRM
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  ChildResults results{};
  results.current = cuCtxGetCurrent(&context);
  results.alloc = cuMemAlloc(&memory, 4);
  results.sync = cuCtxSynchronize();
  _exit(write(results_fd, &results, sizeof results) == sizeof results ? 0 : 1);
}

}  // namespace

std::string fork_and_wait() {
  int ends[2];
  require(pipe(ends) == 0, "pipe failed");
  const pid_t child = fork();
  require(child >= 0, "fork failed");
  if (child == 0) be_child(ends[1]);
  close(ends[1]);
  ChildResults results{};
  const bool told = read(ends[0], &results, sizeof results) == sizeof results;
  close(ends[0]);
  int status = 0;
  require(waitpid(child, &status, 0) == child && told && WIFEXITED(status), "the child ended with wait status " + std::to_string(status));
  std::string text = "ok";
  for (const CUresult result : {results.current, results.alloc, results.sync}) text += " " + std::to_string(static_cast<int>(result));
  return text;
}

std::string fork_and_stay() {
  const pid_t child = fork();
  require(child >= 0, "fork failed");
  if (child == 0) {
    alarm(kStaysSeconds);
    for (;;) pause();
  }
  return "ok " + std::to_string(child);
}

}  // namespace mpsshim::test
