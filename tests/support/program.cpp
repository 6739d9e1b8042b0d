// SPDX-License-Identifier: Apache-2.0
#include "tests/support/program.hpp"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

namespace mpsshim::test {

namespace {

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

int make_memfd(const char* name) {
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) fail("memfd_create");
  return fd;
}

int open_input(const std::string& text) {
  if (text.empty()) {
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail("open /dev/null");
    return fd;
  }
  const int fd = make_memfd("input");
  if (pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) fail("write the standard input");
  return fd;
}

struct InputEnds {
  int read = -1;
  int write = -1;  // -1 unless the program converses
};

// A socket, and not a pipe: send() can be told to raise no SIGPIPE.
InputEnds make_input(const ProgramOptions& options) {
  if (!options.converses) return {open_input(options.input), -1};
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair");
  return {ends[0], ends[1]};
}

std::string contents(int fd) {
  struct stat status {};
  if (fd < 0 || fstat(fd, &status) != 0) return {};
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  const ssize_t count = pread(fd, text.data(), text.size(), 0);
  text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  return text;
}

std::map<std::string, std::string> merged_environment(const ProgramOptions& options) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) merged[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const std::string& name : options.without) merged.erase(name);
  for (const auto& [name, value] : options.environment) merged[name] = value;
  return merged;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct ChildFds {
  int input;
  int output;
  int errors;
};

// Between fork and exec: only calls that a signal handler may make.
[[noreturn]] void become(const char* path, char* const* arguments, char* const* environment, ChildFds fds, unsigned user, pid_t parent) {
  setpgid(0, 0);
  if (user != 0 && (setgroups(0, nullptr) != 0 || setgid(user) != 0 || setuid(user) != 0)) _exit(125);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);  // it ended before the line above
  dup2(fds.input, STDIN_FILENO);
  dup2(fds.output, STDOUT_FILENO);
  dup2(fds.errors, STDERR_FILENO);
  execve(path, arguments, environment);
  _exit(127);
}

}  // namespace

std::string Outcome::explain() const {
  std::ostringstream text;
  text << "exit code " << exit_code << ", signal " << signal << (timed_out ? ", ran out of time" : "") << ", after " << took.count() << " ms\n"
       << "--- output\n"
       << output << "--- errors\n"
       << errors << "---\n";
  return text.str();
}

Program::Program(const std::string& path, const ProgramOptions& options) {
  if (access(path.c_str(), X_OK) != 0) fail("cannot run " + path);
  std::vector<std::string> argument_texts{path};
  argument_texts.insert(argument_texts.end(), options.arguments.begin(), options.arguments.end());
  std::vector<std::string> environment_texts;
  for (const auto& [name, value] : merged_environment(options)) environment_texts.push_back(name + "=" + value);
  const std::vector<char*> arguments = pointers_to(argument_texts);
  const std::vector<char*> environment = pointers_to(environment_texts);

  const InputEnds input = make_input(options);
  input_fd_ = input.write;
  output_fd_ = make_memfd("output");
  errors_fd_ = make_memfd("errors");
  started_ = std::chrono::steady_clock::now();
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) become(path.c_str(), arguments.data(), environment.data(), {input.read, output_fd_, errors_fd_}, options.user, parent);
  close(input.read);
  if (pid_ < 0) fail("fork");
  setpgid(pid_, pid_);  // whichever of the two comes first
}

Program::~Program() {
  if (pid_ > 0 && !ended_) {
    kill_group();
    int status = 0;
    waitpid(pid_, &status, 0);
  }
  if (input_fd_ >= 0) close(input_fd_);
  if (output_fd_ >= 0) close(output_fd_);
  if (errors_fd_ >= 0) close(errors_fd_);
}

Program::Program(Program&& other) noexcept { *this = std::move(other); }

Program& Program::operator=(Program&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(input_fd_, other.input_fd_);
  std::swap(output_fd_, other.output_fd_);
  std::swap(errors_fd_, other.errors_fd_);
  std::swap(ended_, other.ended_);
  std::swap(started_, other.started_);
  std::swap(outcome_, other.outcome_);
  return *this;
}

std::string Program::output() const { return contents(output_fd_); }
std::string Program::errors() const { return contents(errors_fd_); }

bool Program::say(const std::string& line) {
  const std::string text = line + "\n";
  return ::send(input_fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

void Program::send(int signal) const {
  if (pid_ > 0 && !ended_) ::kill(pid_, signal);
}

void Program::kill_group() { ::kill(-pid_, SIGKILL); }

void Program::note_end(int wait_status) {
  ended_ = true;
  outcome_.took = std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - started_);
  if (WIFEXITED(wait_status) && !outcome_.timed_out) outcome_.exit_code = WEXITSTATUS(wait_status);
  if (WIFSIGNALED(wait_status)) outcome_.signal = WTERMSIG(wait_status);
  outcome_.output = output();
  outcome_.errors = errors();
}

bool Program::running() {
  if (ended_ || pid_ <= 0) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  note_end(status);
  return false;
}

bool Program::wait_for_output(const std::string& text, Milliseconds limit) {
  const bool over = eventually(limit, [&] { return output().find(text) != std::string::npos || !running(); });
  return over && output().find(text) != std::string::npos;
}

const Outcome& Program::wait(Milliseconds limit) {
  if (!eventually(limit, [&] { return !running(); })) {
    outcome_.timed_out = true;
    kill_group();
    int status = 0;
    waitpid(pid_, &status, 0);
    note_end(status);
  }
  return outcome_;
}

Outcome run_program(const std::string& path, const ProgramOptions& options, Milliseconds limit) {
  Program program(path, options);
  return program.wait(limit);
}

void sleep_briefly() { std::this_thread::sleep_for(Milliseconds(5)); }

}  // namespace mpsshim::test
