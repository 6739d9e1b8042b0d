// SPDX-License-Identifier: Apache-2.0
// For the files of thread_operations.hpp: how a step calls the driver, and which operations each file has.
#pragma once

#include "thread_operations.hpp"

// A call of the driver, named for who reads about it.
#define DRIVER(worker, name, ...) ((worker).call = MPSSHIM_TEXT_OF(name), CU(name)(__VA_ARGS__))
// It succeeds, else this step ends.
#define STEP(worker, name, ...)                                      \
  do {                                                               \
    if (!(worker).expect(DRIVER(worker, name, __VA_ARGS__))) return; \
  } while (false)

namespace mpsshim::test {

inline std::span<const unsigned> own_pages(const Worker& worker) { return {worker.pages, Worker::kWords}; }
inline std::span<const unsigned> own_pinned(const Worker& worker) { return {worker.pinned, Worker::kWords}; }

// A host function.
inline void count_call(void* counter) { ++*static_cast<std::atomic<unsigned>*>(counter); }

std::span<const Operation> stream_operations();  // and events
std::span<const Operation> memory_operations();
std::span<const Operation> object_operations();  // modules and graphs
std::span<const Operation> context_operations();

}  // namespace mpsshim::test
