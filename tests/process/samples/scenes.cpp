// SPDX-License-Identifier: Apache-2.0
// What a program may do to a harness that runs it; the first argument says which.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <string>

namespace {

bool is_forwarded() { return std::getenv("MPSSHIM_REQUIRE") != nullptr; }

int say(const char* line, int status) {
  std::puts(line);
  return status;
}

// A child in the same process group that heeds nothing but SIGKILL; its number goes to the file.
void leave_child(const char* path) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    for (;;) pause();
  }
  std::ofstream(path) << child << std::endl;
}

int hang(const char* path) {
  signal(SIGTERM, SIG_IGN);
  leave_child(path);
  for (;;) pause();
}

int leave(const char* path) {
  leave_child(path);
  return say("left a child, passed", 0);
}

// The data lies in a folder or a file beside the program, and is written to.
int use_data(const char* expected) {
  std::string folder_says, file_says;
  std::getline(std::ifstream("data/in.txt"), folder_says);
  std::getline(std::ifstream("beside.txt"), file_says);
  std::ofstream("beside.txt") << "spoilt\n";
  std::ofstream("out.txt") << "made\n";
  std::printf("data: %s, %s\n", folder_says.c_str(), file_says.c_str());
  return folder_says == expected && file_says == expected ? 0 : 1;
}

int count(const char* path) {
  std::ofstream(path, std::ios::app) << "run\n";
  usleep(200'000);
  return 0;
}

int print_without_end() {
  const std::string line(1 << 16, 'x');
  for (;;) std::puts(line.c_str());
}

int end_broker(const char* mpsctl) {
  if (!is_forwarded()) return say("no broker to end, passed", 0);
  return std::system((std::string(mpsctl) + " --pipe-dir \"$CUDA_MPS_PIPE_DIRECTORY\" quit --now").c_str()) == 0 ? say("passed", 0) : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string scene = argc > 1 ? argv[1] : "pass";
  const char* const word = argc > 2 ? argv[2] : "";
  const std::map<std::string, std::function<int()>> scenes = {
      {"pass", [] { return say("Test passed", 0); }},
      {"fail", [] { return say("Test failed", 1); }},
      {"fail_forwarded", [] { return is_forwarded() ? say("error 801", 1) : say("Test passed", 0); }},
      {"say_failed", [] { return say(is_forwarded() ? "result: FAILED" : "result: PASSED", 0); }},
      {"waive", [] { return say("waived", 2); }},
      {"waive_forwarded", [] { return say("looked", is_forwarded() ? 2 : 0); }},
      {"crash_forwarded", [] { return is_forwarded() ? raise(SIGSEGV) : 0; }},
      {"differ", [] { return say(is_forwarded() ? "12 of 13 correct, error 0.5" : "13 of 13 correct", 0); }},
      {"numbers", [] { return std::printf("passed in %d ns, error -1.5e-%d\n", getpid(), getpid() % 7), 0; }},
      {"unsteady", [] { return say(getpid() % 2 == 0 ? "even: ok" : "odd: ok", 0); }},
      {"checksum", [] { return say(is_forwarded() ? "checksum 8" : "checksum 7", 0); }},
      {"hang", [word] { return hang(word); }},
      {"hang_forwarded", [word] { return is_forwarded() ? hang(word) : 0; }},
      {"leave", [word] { return leave(word); }},
      {"data", [word] { return use_data(word); }},
      {"count", [word] { return count(word); }},
      {"flood", [] { return print_without_end(); }},
      {"end_broker", [word] { return end_broker(word); }},
  };
  const auto found = scenes.find(scene);
  return found == scenes.end() ? say("unknown scene", 99) : found->second();
}
