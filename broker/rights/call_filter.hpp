// SPDX-License-Identifier: Apache-2.0
// A list of system calls for the kernel (seccomp), made line by line: the first line that speaks of a call decides, what no line speaks of gets the
// answer given at the end. A call that is refused fails with an error, as it would for want of rights: nobody is ended for it. Calls of other
// architectures' tables end the process, those of the x32 table fail. Linux, x86-64.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <linux/filter.h>

namespace mpsshim::broker {

class CallFilter {
 public:
  CallFilter();

  void allow(long call);
  void refuse(long call, int error);
  // What comes by `argument`, of which the lower half is looked at: only where none of these bits is set; where one is; where it is this value.
  void allow_without(long call, unsigned argument, unsigned bits);
  void refuse_without(long call, unsigned argument, unsigned bits, int error);
  void refuse_unless(long call, unsigned argument, unsigned value, int error);
  void refuse_if(long call, unsigned argument, unsigned value, int error);

  enum class Others { are_allowed, are_refused };
  enum class Threads { this_one, all };  // later ones have their maker's
  // For good, over exec too. Needs no_new_privs, or CAP_SYS_ADMIN. False: errno says why; ESRCH where a thread has a filter of its own.
  [[nodiscard]] bool install(Others others, Threads threads);

 private:
  void load(std::size_t offset) { code_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset))); }
  void load_argument(unsigned argument);
  void jump(unsigned test, unsigned value, unsigned char if_so, unsigned char if_not);
  void answer(unsigned action) { code_.push_back(BPF_STMT(BPF_RET | BPF_K, action)); }
  void judge_argument(long call, unsigned argument, unsigned test, unsigned value, unsigned if_so, unsigned if_not);

  std::vector<sock_filter> code_;
};

}  // namespace mpsshim::broker
