// SPDX-License-Identifier: Apache-2.0
// The walls themselves, in children: whoever stands behind them does not come out again.
#include "broker/rights/rights.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include <linux/keyctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.hpp"

using namespace mpsshim::broker;

namespace {

// What `body` says in a child; "ended by signal N" where it does not come to that.
std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const std::string text = body();
    (void)!write(ends[1], text.data(), text.size());
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char piece[256];
  for (ssize_t bytes = 0; (bytes = read(ends[0], piece, sizeof piece)) > 0;) text.append(piece, static_cast<std::size_t>(bytes));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? "ended by signal " + std::to_string(WTERMSIG(status)) : text;
}

// The names of those that are not refused, each after a space.
class Attempts {
 public:
  void add(const char* name, long result, int expected = EPERM) {
    const int error = errno;
    if (result >= 0 || error != expected) text_ += std::string(" ") + name + "=" + (result >= 0 ? "done" : std::strerror(error));
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Arguments with which each of them fails otherwise, or does nothing.
void try_what_nobody_needs(Attempts& attempts) {
  attempts.add("ptrace", ptrace(PTRACE_PEEKDATA, getppid(), nullptr, nullptr));
  attempts.add("process_vm_readv", syscall(SYS_process_vm_readv, getpid(), nullptr, 0, nullptr, 0, 0));
  attempts.add("process_vm_writev", syscall(SYS_process_vm_writev, getpid(), nullptr, 0, nullptr, 0, 0));
  attempts.add("pidfd_getfd", syscall(438, -1, 0, 0));
  attempts.add("bpf", syscall(SYS_bpf, 0, nullptr, 0));
  attempts.add("userfaultfd", syscall(SYS_userfaultfd, 0));
  attempts.add("perf_event_open", syscall(SYS_perf_event_open, nullptr, 0, -1, -1, 0));
  attempts.add("keyctl", syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 1));
  attempts.add("mount", mount(nullptr, "/nonexistent", nullptr, 0, nullptr));
  attempts.add("unshare", syscall(SYS_unshare, 0));
  attempts.add("chroot", chroot("/nonexistent"));
  attempts.add("io_uring_setup", syscall(SYS_io_uring_setup, 1, nullptr));
  attempts.add("finit_module", syscall(SYS_finit_module, -1, "", 0));
  attempts.add("of the x32 table", syscall(0x4000'0000 + 39), ENOSYS);
}

std::string status_line(const char* name) {
  std::ifstream file("/proc/thread-self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return line.substr(line.find_first_not_of("\t ", line.find(':') + 1));
  }
  return {};
}

}  // namespace

TEST_CASE("an executor's walls refuse it other processes, programs, the network and the machine, in all its threads") {
  if (kIsSanitized) MPSSHIM_SKIP("a sanitizer makes calls of its own that the walls refuse");
  const std::string let_through = in_child([] {
    std::string by_thread;
    bool stand = false;
    std::atomic<bool> are_up{false};
    std::thread earlier([&] {
      while (!are_up) std::this_thread::yield();
      Attempts attempts;
      try_what_nobody_needs(attempts);
      by_thread = attempts.text();
    });
    stand = wall_in_executor();
    are_up = true;
    earlier.join();
    Attempts attempts;
    try_what_nobody_needs(attempts);
    attempts.add("execve", syscall(SYS_execve, "/nonexistent", nullptr, nullptr));
    attempts.add("fork", fork());
    attempts.add("vfork", syscall(SYS_vfork));
    attempts.add("clone3", syscall(SYS_clone3, nullptr, 0), ENOSYS);
    attempts.add("kill", kill(getppid(), 0));
    attempts.add("tgkill", syscall(SYS_tgkill, getppid(), getppid(), 0));
    attempts.add("setuid", setuid(getuid()));
    attempts.add("capset", syscall(SYS_capset, nullptr, nullptr));
    for (const int kind : {AF_INET, AF_INET6, AF_NETLINK, AF_PACKET}) attempts.add("socket", socket(kind, SOCK_DGRAM, 0));
    return std::string(stand ? "" : "no walls") + by_thread + attempts.text();
  });
  CHECK(let_through == "");
}

TEST_CASE("behind them an executor has threads, files, sockets of this machine, and signals to itself") {
  if (kIsSanitized) MPSSHIM_SKIP("a sanitizer makes calls of its own that the walls refuse");
  const std::string answer = in_child([] {
    if (!wall_in_executor()) return std::string("no walls");
    bool ran = false;
    std::thread([&] { ran = true; }).join();
    int ends[2];
    const bool has_sockets = socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0;
    const bool has_files = memfd_create("test", MFD_CLOEXEC) >= 0;
    static volatile std::sig_atomic_t signals = 0;
    signal(SIGUSR1, [](int) { signals = signals + 1; });
    raise(SIGUSR1);
    return std::string(ran && has_sockets && has_files && signals == 1 ? "all" : "not all");
  });
  CHECK(answer == "all");
}

TEST_CASE("the control process's walls let it make executors, which have them as well, and are put up once") {
  if (kIsSanitized) MPSSHIM_SKIP("a sanitizer makes calls of its own that the walls refuse");
  const std::string answer = in_child([] {
    const std::string before = status_line("Seccomp_filters");
    if (!wall_in_control() || !wall_in_control()) return std::string("no walls");
    if (!before.empty() && std::stoi(status_line("Seccomp_filters")) != std::stoi(before) + 1) return std::string("not once");
    const pid_t child = fork();
    if (child < 0) return std::string("no child");
    if (child == 0) {
      Attempts attempts;
      try_what_nobody_needs(attempts);
      if (!attempts.text().empty() || status_line("NoNewPrivs") != "1") _exit(1);
      execl("/bin/true", "true", nullptr);
      _exit(2);
    }
    int status = 0;
    waitpid(child, &status, 0);
    Attempts attempts;
    try_what_nobody_needs(attempts);
    return "child " + std::to_string(WEXITSTATUS(status)) + attempts.text();
  });
  CHECK(answer == "child 0");
}

TEST_CASE("of its capabilities a process keeps those that it names, if it had them") {
  if (!has_capability(CAP_KILL)) MPSSHIM_SKIP("only root has capabilities to give up");
  const std::string answer = in_child([] {
    if (!keep_capabilities({CAP_KILL})) return std::string("not dropped");
    std::string of_thread;
    std::thread([&] { of_thread = status_line("CapEff"); }).join();
    return status_line("CapPrm") + status_line("CapEff") + of_thread + (has_capability(CAP_KILL) ? " kill" : "") +
           (has_capability(CAP_SYS_ADMIN) ? " admin" : "");
  });
  CHECK(answer == "000000000000002000000000000000200000000000000020 kill");
  const std::string executed = in_child([] {
    int ends[2];
    if (pipe(ends) != 0 || !keep_capabilities({CAP_KILL, CAP_SYSLOG}, Heirs::programs)) return std::string("not dropped");
    personality(ADDR_NO_RANDOMIZE);
    if (fork() == 0) {
      dup2(ends[1], STDOUT_FILENO);
      execl("/bin/cat", "cat", "/proc/self/personality", "/proc/self/status", nullptr);
      _exit(1);
    }
    close(ends[1]);
    std::string text(65536, ' ');
    std::size_t bytes = 0;
    for (ssize_t more = 0; (more = read(ends[0], text.data() + bytes, text.size() - bytes)) > 0;) bytes += static_cast<std::size_t>(more);
    const std::size_t line = text.find("CapPrm:");
    return line == std::string::npos ? "not executed" : text.substr(0, text.find('\n')) + " " + text.substr(line, text.find('\n', line) - line);
  });
  CHECK(executed == "00040000 CapPrm:\t0000000400000020");  // what it has kept, and no more: so its addresses stay as they were
  const std::string again = in_child([] {
    if (!keep_capabilities({}) || !keep_capabilities({CAP_KILL})) return std::string("not dropped");
    return status_line("CapPrm");
  });
  CHECK(again == "0000000000000000");
}
