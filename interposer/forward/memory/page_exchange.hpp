// SPDX-License-Identifier: Apache-2.0
// Puts pages of a shared mapping in the place of private ones that other threads of the program use meanwhile. A piece at a time is protected by
// userfaultfd (Linux 5.7): who stores there waits until the piece has been copied and exchanged, some hundred microseconds, and goes on in the new
// pages, so no store is lost. Reading goes on all the while.
//
// With FaultsOf::process a system call that would store into a piece in that time fails (EFAULT). What the processor does not store itself (O_DIRECT)
// must have ended. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "interposer/forward/memory/address_range.hpp"

namespace mpsshim::interposer::forward {

enum class FaultsOf : std::uint8_t;

// Of this thread's stack, or of what the thread has for itself: it cannot be exchanged by this thread.
[[nodiscard]] bool is_of_this_thread(AddressRange pages);

// `pages`: private, all of them. `shared`: a shared mapping of the same length, which stays where it is. How many bytes of the pages have been
// exchanged, from their beginning; 0 where nothing can be.
[[nodiscard]] std::uint64_t exchange_pages(AddressRange pages, std::byte* shared, FaultsOf whose);

}  // namespace mpsshim::interposer::forward
