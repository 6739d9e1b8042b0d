// SPDX-License-Identifier: Apache-2.0
// What the broker's processes give up of the rights they were started with, so that whoever takes one over by its clients' doing gets little more
// than the clients' memory, which that process has anyway. What is given up stays so over exec and for all children.
//
//   capabilities   of each thread for itself: keep_capabilities(). Executors before they make threads, the control process once its first executor
//                  is ready
//   no_new_privs   no program that is executed later gets rights by its file (set-uid, capabilities): with the calls
//   system calls   executor: once its context is made, since the driver may execute helpers before (nvidia-modprobe); control process: once its
//                  first executor is ready, since executors have its rights from their beginning
//
// Lists of what is refused, not of what is allowed: nobody knows all that a driver calls. Under sanitizers, which fork and trace, no call is refused.
#pragma once

#include <cstdint>
#include <initializer_list>

#include <linux/capability.h>

namespace mpsshim::broker {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer) || \
    __has_feature(undefined_behavior_sanitizer)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif
#else
inline constexpr bool kIsSanitized = false;
#endif

// Of this thread, and of those it makes from now on: of what it has, all others go. False: errno says why.
// Whoever executes a program as root, or one with capabilities of its own, and has fewer than that gives, gains some, and loses by it what
// personality() has set, such as addresses that are not random. So a process that makes executors gives up what programs would gain, too; where it
// may not, nothing goes.
enum class Heirs { none, programs };  // what is executed later has these and no others
[[nodiscard]] bool keep_capabilities(std::initializer_list<unsigned> kept, Heirs heirs = Heirs::none);
[[nodiscard]] bool has_capability(unsigned capability);
// Threads of this process, and of what it executes, may come so far before others (their niceness below 0) without a capability. Before
// capabilities go; where the limit cannot be raised (CAP_SYS_RESOURCE), it stays.
void allow_priority(unsigned priority);

// All threads: no_new_privs, and no call that lets a process become or look into another, load code into the kernel, or change the machine.
// An executor executes nothing, makes no process and no socket but of the machine's own kind, and sends signals to itself alone.
// Made by any thread; once is enough, also over exec. False: errno says why; then what could not be refused is not.
[[nodiscard]] bool wall_in_executor();
[[nodiscard]] bool wall_in_control();

}  // namespace mpsshim::broker
