// SPDX-License-Identifier: Apache-2.0
#include "broker/compiler/sandbox.hpp"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "broker/rights/call_filter.hpp"
#include "broker/rights/rights.hpp"

namespace mpsshim::broker {

namespace {

constexpr uid_t kNobody = 65534;

bool set_limits() {
  bool good = set_limit(RLIMIT_CORE, 0) && set_limit(RLIMIT_NOFILE, kCompilerFiles) && set_limit(RLIMIT_FSIZE, kCompilerFileBytes);
  if (!kIsSanitized) good = good && set_limit(RLIMIT_AS, kCompilerMemoryBytes);
  return good;
}

bool filter_system_calls() {
  CallFilter filter;
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
  return filter.install(CallFilter::Others::are_refused, CallFilter::Threads::this_one);
}

}  // namespace

void go_first() {
  if (const int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); file >= 0) {
    (void)!write(file, "1000", 4);
    close(file);
  }
}

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

Restraint restrain() {
  go_first();
  if (!leave_root() || !keep_capabilities({})) return Restraint::user;
  prctl(PR_SET_DUMPABLE, 0);  // changing the user may have set it
  if (!set_limits()) return Restraint::limits;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Restraint::privileges;
  if (!kIsSanitized && !filter_system_calls()) return Restraint::system_calls;
  return Restraint::none;
}

void limit_job_time(std::chrono::seconds time) {
  rusage used{};
  rlimit limit{};
  if (getrusage(RUSAGE_SELF, &used) != 0 || getrlimit(RLIMIT_CPU, &limit) != 0) return;
  const auto seconds = static_cast<rlim_t>(used.ru_utime.tv_sec + used.ru_stime.tv_sec + 2 + time.count());  // two parts, rounded down
  limit.rlim_cur = std::min(limit.rlim_max, seconds);
  setrlimit(RLIMIT_CPU, &limit);
}

}  // namespace mpsshim::broker
