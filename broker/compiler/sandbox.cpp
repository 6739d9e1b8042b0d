// SPDX-License-Identifier: Apache-2.0
#include "broker/compiler/sandbox.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <vector>

#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mpsshim::broker {

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer) || \
    __has_feature(undefined_behavior_sanitizer)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif
#else
constexpr bool kIsSanitized = false;
#endif

constexpr uid_t kNobody = 65534;

// Root's would be able to do what no limit says.
bool leave_root() {
  if (geteuid() != 0) return true;
  return setgroups(0, nullptr) == 0 && setresgid(kNobody, kNobody, kNobody) == 0 && setresuid(kNobody, kNobody, kNobody) == 0;
}

bool set_limit(int resource, rlim_t most) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return false;
  limit.rlim_max = std::min(limit.rlim_max, most);
  limit.rlim_cur = std::min(limit.rlim_cur, limit.rlim_max);
  return setrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0;
}

bool set_limits() {
  bool good = set_limit(RLIMIT_CORE, 0) && set_limit(RLIMIT_NOFILE, kCompilerFiles) && set_limit(RLIMIT_FSIZE, kCompilerFileBytes);
  if (!kIsSanitized) good = good && set_limit(RLIMIT_AS, kCompilerMemoryBytes);
  return good;
}

// A program for the kernel: the first instruction that returns decides.
class Filter {
 public:
  Filter() {
    load(offsetof(seccomp_data, arch));
    skip_unless(BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0);
    answer(SECCOMP_RET_KILL_PROCESS);
    load(offsetof(seccomp_data, nr));
  }
  void allow(long call) {
    skip_unless(BPF_JEQ, static_cast<unsigned>(call), 0, 1);
    answer(SECCOMP_RET_ALLOW);
  }
  // Only where of an argument's lower half none of these bits is set.
  void allow_without(long call, unsigned argument, unsigned bits) {
    skip_unless(BPF_JEQ, static_cast<unsigned>(call), 0, 4);
    load(static_cast<unsigned>(offsetof(seccomp_data, args)) + 8 * argument);
    skip_unless(BPF_JSET, bits, 1, 0);
    answer(SECCOMP_RET_ALLOW);
    answer(SECCOMP_RET_ERRNO | EPERM);
  }
  // Others fail, as they would for want of rights: what a C library tries beyond need ends nobody's job.
  [[nodiscard]] bool install() {
    answer(SECCOMP_RET_ERRNO | EPERM);
    const sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  }

 private:
  void load(std::size_t offset) { code_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset))); }
  void skip_unless(unsigned test, unsigned value, unsigned char if_so, unsigned char if_not) {
    code_.push_back(BPF_JUMP(static_cast<unsigned short>(BPF_JMP | BPF_K | test), value, if_so, if_not));
  }
  void answer(unsigned action) { code_.push_back(BPF_STMT(BPF_RET | BPF_K, action)); }

  std::vector<sock_filter> code_;
};

bool filter_system_calls() {
  Filter filter;
  for (const long call :
       {SYS_read,         SYS_write,      SYS_pread64,       SYS_pwrite64,        SYS_sendmsg,   SYS_recvmsg,         SYS_close,
        SYS_fstat,        SYS_newfstatat, SYS_memfd_create,  SYS_ftruncate,       SYS_fcntl,     SYS_munmap,          SYS_mremap,
        SYS_brk,          SYS_madvise,    SYS_futex,         SYS_getpid,          SYS_gettid,    SYS_rt_sigprocmask,  SYS_rt_sigtimedwait,
        SYS_rt_sigreturn, SYS_getrusage,  SYS_clock_gettime, SYS_clock_nanosleep, SYS_getrandom, SYS_restart_syscall, SYS_exit,
        SYS_exit_group}) {
    filter.allow(call);
  }
  filter.allow_without(SYS_mmap, 2, PROT_EXEC);
  filter.allow_without(SYS_mprotect, 2, PROT_EXEC);
  filter.allow_without(SYS_prlimit64, 0, ~0u);  // its own
  return filter.install();
}

}  // namespace

Restraint restrain() {
  // Where memory runs out it is the one to go.
  if (const int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); file >= 0) {
    (void)!write(file, "1000", 4);
    close(file);
  }
  if (!leave_root()) return Restraint::user;
  prctl(PR_SET_DUMPABLE, 0);  // changing the user may have set it
  if (!set_limits()) return Restraint::limits;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Restraint::privileges;
  if (!kIsSanitized && !filter_system_calls()) return Restraint::system_calls;
  return Restraint::none;
}

void limit_job_time() {
  rusage used{};
  rlimit limit{};
  if (getrusage(RUSAGE_SELF, &used) != 0 || getrlimit(RLIMIT_CPU, &limit) != 0) return;
  const auto seconds = static_cast<rlim_t>(used.ru_utime.tv_sec + used.ru_stime.tv_sec + 2 + kCompilerJobTime.count());  // two parts, rounded down
  limit.rlim_cur = std::min(limit.rlim_max, seconds);
  setrlimit(RLIMIT_CPU, &limit);
}

}  // namespace mpsshim::broker
