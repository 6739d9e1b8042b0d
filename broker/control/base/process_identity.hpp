// SPDX-License-Identifier: Apache-2.0
// Who is at the other end: what /proc says about a process and about a pidfd.
#pragma once

#include <functional>
#include <string>

#include <sys/types.h>

#include "proto/segment.hpp"

namespace mpsshim::broker::control {

// The command line, arguments separated by spaces, cut to 200 characters, printable(); "?" where it cannot be read.
[[nodiscard]] std::string command_of(pid_t pid);
// Its arguments up to the first that is no option, at most 8 and 200 characters: what tells an interpreter's scripts from each other. "": it has
// none, or they cannot be read.
[[nodiscard]] std::string leading_words_of(pid_t pid);
// Of the process that has started it, or has taken it over since; 0: it cannot be read.
[[nodiscard]] pid_t parent_of(pid_t pid);
// Names of NVIDIA's variables in its environment, as it was started, that nothing enforces (proto/mps_variables.hpp); "": none, or it cannot be read.
[[nodiscard]] std::string unenforced_variables_of(pid_t pid);
// The number of its pid namespace, as /proc/PID/ns/pid names it; "-" where it cannot be read.
[[nodiscard]] std::string pid_namespace_of(pid_t pid);
// Whether it is a pidfd, whoever made it. Asks the kernel for nothing but its name: of a file whose file system is a process (FUSE) even fstat()
// waits for that one.
[[nodiscard]] bool is_pidfd(const proto::FileDescriptor& fd);
// The process a descriptor refers to: 0 or less if it is dead or of another pid namespace, kNotAPidfd if the descriptor is something else. Of a
// descriptor that a stranger has sent only once is_pidfd() has said so.
inline constexpr pid_t kNotAPidfd = -2;
[[nodiscard]] pid_t pid_of(const proto::FileDescriptor& pidfd);
[[nodiscard]] proto::FileDescriptor open_pidfd(pid_t pid);  // invalid on failure (errno)

struct ChildProcess {
  pid_t pid = -1;  // there is none: errno
  proto::FileDescriptor pidfd;
};
// Its whole life is `become`, which executes another program, or ends it: between fork and exec a child only makes system calls. It dies with this
// process, and takes signals as any program does, but for SIGINT: Ctrl-C on the terminal is for this process, which then ends it in order.
[[nodiscard]] ChildProcess make_child(const std::function<void()>& become);

}  // namespace mpsshim::broker::control
