// SPDX-License-Identifier: Apache-2.0
// driver_topics NAME: one subject of the driver API from beginning to end, results checked. Each function throws Failure where something is
// not as CUDA's manual says. The cases of test_driver_topics.cpp run them one by one.
#pragma once

#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {

// topics_memory.cpp
void pageable_copies(const Device& device);
void pinned_memory(const Device& device);
void memsets(const Device& device);
void unified_copies(const Device& device);
void pointer_facts(const Device& device);
// topics_streams.cpp
void stream_order(const Device& device);
void legacy_order(const Device& device);
void events(const Device& device);
void many_streams(const Device& device);
// topics_threads.cpp
void per_thread_streams(const Device& device);
void many_threads(const Device& device);
void ending_streams(const Device& device);
// topics_modules.cpp
void modules_and_globals(const Device& device);
void refused_launches(const Device& device);
void contexts(const Device& device);

// Long enough that a test of order notices where there is none.
inline constexpr unsigned kSlowWords = 20'000;

}  // namespace mpsshim::test
