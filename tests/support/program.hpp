// SPDX-License-Identifier: Apache-2.0
// Running a program in a test: its output kept, its time limited, its end certain.
//
// Program belongs to the test that started it and is used from one thread. Its destructor kills the program's whole process group; if the test
// itself is killed (CTest's time limit), the kernel kills the program (PR_SET_PDEATHSIG). Output goes to memfds, so a program never waits
// for a reader and what it has said so far can be read at any time.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace mpsshim::test {

using Milliseconds = std::chrono::milliseconds;

// What became of a program. `ok()` is exit status 0; explain() is for INFO and failure messages.
struct Outcome {
  int exit_code = -1;  // -1 where a signal ended it or time ran out
  int signal = 0;
  bool timed_out = false;  // it was killed by wait()
  std::string output;
  std::string errors;
  Milliseconds took{0};

  [[nodiscard]] bool ok() const { return exit_code == 0; }
  [[nodiscard]] std::string explain() const;
};

struct ProgramOptions {
  std::vector<std::string> arguments;
  std::map<std::string, std::string> environment;  // set over the test's own
  std::vector<std::string> without;                // variables taken out of it
  std::string input;                               // its standard input; empty: /dev/null
  unsigned user = 0;                               // who it becomes, and a group of the same number; 0: nobody else
  bool converses = false;                          // its standard input is what say() writes instead
};

class Program {
 public:
  // `path` is a file, no name to be looked up. Throws std::system_error where it cannot be started.
  Program(const std::string& path, const ProgramOptions& options);
  ~Program();
  Program(Program&& other) noexcept;
  Program& operator=(Program&& other) noexcept;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool running();
  // What it has written so far.
  [[nodiscard]] std::string output() const;
  [[nodiscard]] std::string errors() const;
  // True once `text` is in its output; false if it has ended or `limit` has passed without.
  [[nodiscard]] bool wait_for_output(const std::string& text, Milliseconds limit);

  // Writes a line to the standard input of a program that converses. False if it has ended.
  [[nodiscard]] bool say(const std::string& line);

  void send(int signal) const;
  // Waits for its end; after `limit` it is killed and the outcome says so. May be called again: the answer stays.
  const Outcome& wait(Milliseconds limit = std::chrono::seconds(60));

 private:
  void kill_group();
  void note_end(int wait_status);

  pid_t pid_ = -1;
  int input_fd_ = -1;  // -1 unless it converses
  int output_fd_ = -1;
  int errors_fd_ = -1;
  bool ended_ = false;
  std::chrono::steady_clock::time_point started_;
  Outcome outcome_;
};

// Starts and waits.
[[nodiscard]] Outcome run_program(const std::string& path, const ProgramOptions& options, Milliseconds limit = std::chrono::seconds(60));

// Polls until `condition()` holds; false if `limit` passes first. Many a condition starts a program, so looks become rarer: one each 5 ms at first,
// behind an eighth of what has been waited for, each 20 ms in the end.
template <typename Condition>
[[nodiscard]] bool eventually(Milliseconds limit, Condition condition);

void sleep_briefly();

template <typename Condition>
bool eventually(Milliseconds limit, Condition condition) {
  const auto begin = std::chrono::steady_clock::now();
  while (!condition()) {
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited >= limit) return false;
    std::this_thread::sleep_for(std::clamp<std::chrono::steady_clock::duration>(waited / 8, Milliseconds(5), Milliseconds(20)));
  }
  return true;
}

}  // namespace mpsshim::test
