// SPDX-License-Identifier: Apache-2.0
#include "broker/rights/rights.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "broker/rights/call_filter.hpp"

namespace mpsshim::broker {

namespace {

using Capabilities = std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3>;

bool read_capabilities(Capabilities& capabilities) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  return syscall(SYS_capget, &header, capabilities.data()) == 0;
}

bool has(const Capabilities& capabilities, unsigned capability) {
  return (capabilities[CAP_TO_INDEX(capability)].effective & CAP_TO_MASK(capability)) != 0;
}

// What root's programs get is the bounding set. False: it cannot be made smaller (CAP_SETPCAP), and nothing has been changed.
bool bound_programs(const Capabilities& left) {
  for (unsigned capability = 0; capability < 32 * _LINUX_CAPABILITY_U32S_3; ++capability) {
    if (prctl(PR_CAPBSET_READ, capability, 0, 0, 0) != 1 || has(left, capability)) continue;
    if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) return false;
  }
  return true;
}

// Numbers newer than the headers that this is built with; the same on every architecture.
constexpr long kOpenTree = 428;
constexpr long kMoveMount = 429;
constexpr long kFsopen = 430;
constexpr long kFsconfig = 431;
constexpr long kFsmount = 432;
constexpr long kFspick = 433;
constexpr long kClone3 = 435;
constexpr long kPidfdGetfd = 438;
constexpr long kProcessMadvise = 440;
constexpr long kMountSetattr = 442;
constexpr long kQuotactlFd = 443;

// Whoever asks prctl() for this is told whether these walls stand: each hand-over to another program would put up further ones.
constexpr unsigned kMark = 0x6d70'7301;
constexpr int kStands = EXFULL;

bool stands() { return prctl(static_cast<int>(kMark), 0, 0, 0, 0) != 0 && errno == kStands; }

constexpr long kNobodyNeeds[] = {
    // Other processes: their memory, their files, their rights.
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, kProcessMadvise, kPidfdGetfd, SYS_kcmp, SYS_perf_event_open, SYS_userfaultfd,
    // Code in the kernel, and what was a way there more than once.
    SYS_bpf, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_kexec_file_load, SYS_keyctl, SYS_add_key, SYS_request_key,
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, SYS_modify_ldt, SYS_iopl, SYS_ioperm, SYS_fanotify_init,
    // Other views of the machine.
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_setns, SYS_unshare, SYS_open_by_handle_at, kOpenTree, kMoveMount, kFsopen, kFsconfig,
    kFsmount, kFspick, kMountSetattr,
    // The machine itself.
    SYS_reboot, SYS_swapon, SYS_swapoff, SYS_acct, SYS_quotactl, kQuotactlFd, SYS_syslog, SYS_settimeofday, SYS_clock_settime, SYS_clock_adjtime,
    SYS_adjtimex, SYS_sethostname, SYS_setdomainname, SYS_vhangup};

// A process that makes no others, and is itself all its life.
constexpr long kNoExecutorNeeds[] = {SYS_execve,
                                     SYS_execveat,
                                     SYS_fork,
                                     SYS_vfork,
                                     SYS_kill,
                                     SYS_tkill,
                                     SYS_rt_sigqueueinfo,
                                     SYS_rt_tgsigqueueinfo,
                                     SYS_pidfd_send_signal,
                                     SYS_setuid,
                                     SYS_setgid,
                                     SYS_setreuid,
                                     SYS_setregid,
                                     SYS_setresuid,
                                     SYS_setresgid,
                                     SYS_setgroups,
                                     SYS_setfsuid,
                                     SYS_setfsgid,
                                     SYS_capset,
                                     SYS_personality,
                                     SYS_mknod,
                                     SYS_mknodat};

template <std::size_t kCount>
void refuse_all(CallFilter& filter, const long (&calls)[kCount]) {
  for (const long call : calls) filter.refuse(call, EPERM);
}

}  // namespace

bool has_capability(unsigned capability) {
  Capabilities capabilities{};
  return read_capabilities(capabilities) && has(capabilities, capability);
}

void allow_priority(unsigned priority) {
  constexpr rlim_t kNoPriority = 20;  // the limit that niceness 0 has
  rlimit limit{};
  if (getrlimit(RLIMIT_NICE, &limit) != 0) return;
  const rlim_t wanted = kNoPriority + priority;
  if (limit.rlim_cur >= wanted) return;
  const rlimit raised{wanted, std::max(wanted, limit.rlim_max)};
  if (setrlimit(RLIMIT_NICE, &raised) == 0) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  (void)setrlimit(RLIMIT_NICE, &limit);
}

bool keep_capabilities(std::initializer_list<unsigned> kept, Heirs heirs) {
  Capabilities capabilities{};
  if (!read_capabilities(capabilities)) return false;
  Capabilities left{};
  for (const unsigned capability : kept) {
    const std::uint32_t bit = CAP_TO_MASK(capability) & capabilities[CAP_TO_INDEX(capability)].permitted;
    left[CAP_TO_INDEX(capability)].permitted |= bit;
    left[CAP_TO_INDEX(capability)].effective |= bit;
    if (heirs == Heirs::programs) left[CAP_TO_INDEX(capability)].inheritable |= bit;
  }
  const bool is_root = geteuid() == 0;
  if (heirs == Heirs::programs && is_root && !bound_programs(left)) return false;
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  if (syscall(SYS_capset, &header, left.data()) != 0) return false;
  if (heirs == Heirs::none || is_root) return true;
  for (const unsigned capability : kept) {
    if (has(left, capability) && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0) != 0) return false;
  }
  return true;
}

bool wall_in_executor() {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  if (kIsSanitized) return true;
  CallFilter filter;
  filter.refuse_if(SYS_prctl, 0, kMark, kStands);
  // What the C library makes threads with first says what it wants in memory, where no filter looks. It goes on to the older call.
  filter.refuse(kClone3, ENOSYS);
  filter.refuse_without(SYS_clone, 0, CLONE_THREAD, EPERM);
  filter.refuse_unless(SYS_tgkill, 0, static_cast<unsigned>(getpid()), EPERM);  // raise()
  filter.refuse_unless(SYS_socket, 0, AF_UNIX, EPERM);
  refuse_all(filter, kNoExecutorNeeds);
  refuse_all(filter, kNobodyNeeds);
  return filter.install(CallFilter::Others::are_allowed, CallFilter::Threads::all);
}

bool wall_in_control() {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  if (kIsSanitized || stands()) return true;
  CallFilter filter;
  filter.refuse_if(SYS_prctl, 0, kMark, kStands);
  refuse_all(filter, kNobodyNeeds);
  return filter.install(CallFilter::Others::are_allowed, CallFilter::Threads::all);
}

}  // namespace mpsshim::broker
