// SPDX-License-Identifier: Apache-2.0
#include "broker/rights/call_filter.hpp"

#include <cerrno>
#include <cstddef>

#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mpsshim::broker {

namespace {

constexpr unsigned kX32Calls = 0x4000'0000;  // their numbers begin here

unsigned error_answer(int error) { return SECCOMP_RET_ERRNO | static_cast<unsigned>(error); }

}  // namespace

// The number of the call stays loaded, or the line that has loaded something else ends with an answer.
CallFilter::CallFilter() {
  load(offsetof(seccomp_data, arch));
  jump(BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0);
  answer(SECCOMP_RET_KILL_PROCESS);
  load(offsetof(seccomp_data, nr));
  jump(BPF_JGE, kX32Calls, 0, 1);
  answer(error_answer(ENOSYS));
}

void CallFilter::load_argument(unsigned argument) { load(offsetof(seccomp_data, args) + std::size_t{8} * argument); }

void CallFilter::jump(unsigned test, unsigned value, unsigned char if_so, unsigned char if_not) {
  code_.push_back(BPF_JUMP(static_cast<unsigned short>(BPF_JMP | BPF_K | test), value, if_so, if_not));
}

void CallFilter::judge_argument(long call, unsigned argument, unsigned test, unsigned value, unsigned if_so, unsigned if_not) {
  jump(BPF_JEQ, static_cast<unsigned>(call), 0, 4);
  load_argument(argument);
  jump(test, value, 0, 1);
  answer(if_so);
  answer(if_not);
}

void CallFilter::allow(long call) {
  jump(BPF_JEQ, static_cast<unsigned>(call), 0, 1);
  answer(SECCOMP_RET_ALLOW);
}

void CallFilter::refuse(long call, int error) {
  jump(BPF_JEQ, static_cast<unsigned>(call), 0, 1);
  answer(error_answer(error));
}

void CallFilter::allow_without(long call, unsigned argument, unsigned bits) {
  judge_argument(call, argument, BPF_JSET, bits, error_answer(EPERM), SECCOMP_RET_ALLOW);
}

void CallFilter::refuse_without(long call, unsigned argument, unsigned bits, int error) {
  judge_argument(call, argument, BPF_JSET, bits, SECCOMP_RET_ALLOW, error_answer(error));
}

void CallFilter::refuse_unless(long call, unsigned argument, unsigned value, int error) {
  judge_argument(call, argument, BPF_JEQ, value, SECCOMP_RET_ALLOW, error_answer(error));
}

void CallFilter::refuse_if(long call, unsigned argument, unsigned value, int error) {
  judge_argument(call, argument, BPF_JEQ, value, error_answer(error), SECCOMP_RET_ALLOW);
}

bool CallFilter::install(Others others, Threads threads) {
  answer(others == Others::are_allowed ? SECCOMP_RET_ALLOW : error_answer(EPERM));
  const sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
  // Older kernels would slow every thread down that has a filter, for fear of code that is not the program's own: there is none here.
  unsigned flags = SECCOMP_FILTER_FLAG_SPEC_ALLOW;
  if (threads == Threads::all) flags |= SECCOMP_FILTER_FLAG_TSYNC;
  long result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
  if (result < 0 && errno == EINVAL) result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags & ~SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program);
  if (result > 0) errno = ESRCH;  // the thread that could not be brought in line
  return result == 0;
}

}  // namespace mpsshim::broker
