// SPDX-License-Identifier: Apache-2.0
// fork() after cuInit: what the child gets, and what becomes of what it has inherited.
#pragma once

#include <string>

namespace mpsshim::test {

// The child calls the API and ends: "ok INIT ALLOC SYNC", the numbers of the errors that the child got.
[[nodiscard]] std::string fork_and_wait();
// The child calls nothing and stays for a minute, with all descriptors it has inherited: "ok PID".
[[nodiscard]] std::string fork_and_stay();

}  // namespace mpsshim::test
