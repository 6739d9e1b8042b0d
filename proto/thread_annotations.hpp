// SPDX-License-Identifier: Apache-2.0
// What clang's thread-safety analysis reads (clang manual, "Thread Safety Analysis"): which lock guards a variable, and which one a function's
// caller holds. `scripts/lint threads` has clang look; for g++ all of it is empty.
//
//   GUARDED_BY(mutex_)     a variable: read and written under that lock
//   PT_GUARDED_BY(mutex_)  the same of what a pointer points to
//   REQUIRES(mutex_)       a function: its caller holds the lock
//   EXCLUDES(mutex_)       a function: its caller does not, for it takes the lock itself
#pragma once

#if defined(__clang__)
#define MPSSHIM_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define MPSSHIM_THREAD_ATTRIBUTE(x)
#endif

#define CAPABILITY(x) MPSSHIM_THREAD_ATTRIBUTE(capability(x))
#define SCOPED_CAPABILITY MPSSHIM_THREAD_ATTRIBUTE(scoped_lockable)
#define GUARDED_BY(x) MPSSHIM_THREAD_ATTRIBUTE(guarded_by(x))
#define PT_GUARDED_BY(x) MPSSHIM_THREAD_ATTRIBUTE(pt_guarded_by(x))
#define REQUIRES(...) MPSSHIM_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define REQUIRES_SHARED(...) MPSSHIM_THREAD_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
#define EXCLUDES(...) MPSSHIM_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) MPSSHIM_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...) MPSSHIM_THREAD_ATTRIBUTE(acquire_shared_capability(__VA_ARGS__))
#define RELEASE(...) MPSSHIM_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define RELEASE_SHARED(...) MPSSHIM_THREAD_ATTRIBUTE(release_shared_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) MPSSHIM_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define TRY_ACQUIRE_SHARED(...) MPSSHIM_THREAD_ATTRIBUTE(try_acquire_shared_capability(__VA_ARGS__))
#define ASSERT_CAPABILITY(x) MPSSHIM_THREAD_ATTRIBUTE(assert_capability(x))
#define RETURN_CAPABILITY(x) MPSSHIM_THREAD_ATTRIBUTE(lock_returned(x))
#define NO_THREAD_SAFETY_ANALYSIS MPSSHIM_THREAD_ATTRIBUTE(no_thread_safety_analysis)
