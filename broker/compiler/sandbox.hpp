// SPDX-License-Identifier: Apache-2.0
// What a compiler process gives up before it reads the first image, so that whoever takes it over by one has nothing: no rights, no files, no
// other process, no new code, and only so much memory and time. Linux, x86-64.
// Under sanitizers, which need address space and system calls of their own, only descriptors and rights are given up.
#pragma once

#include <chrono>
#include <cstddef>

#include <sys/resource.h>

namespace mpsshim::broker {

inline constexpr std::size_t kCompilerMemoryBytes = std::size_t{3} << 30;  // of addresses: an image, what it is unpacked to, what describes it
inline constexpr std::size_t kCompilerFileBytes = (std::size_t{1} << 30) + (std::size_t{128} << 20);  // of one memory file
inline constexpr std::size_t kCompilerFiles = 16;
inline constexpr std::chrono::seconds kCompilerJobTime{10};  // of the processor

enum class Restraint : unsigned { none, user, limits, privileges, system_calls };

// With all threads that there will be. The one that could not be put on, with errno; the rest holds.
[[nodiscard]] Restraint restrain();
// The job that begins now may take so much of the processor; then SIGXCPU ends the process.
void limit_job_time(std::chrono::seconds time);

// Parts of it, for linker processes (broker/linker), which keep more.
void go_first();                                     // where memory runs out
[[nodiscard]] bool leave_root();                     // root becomes `nobody`: no limit says what it may do
[[nodiscard]] bool set_limit(int resource, rlim_t most);  // RLIMIT_...; what is less stays

}  // namespace mpsshim::broker
