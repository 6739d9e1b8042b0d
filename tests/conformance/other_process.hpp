// SPDX-License-Identifier: Apache-2.0
// A second process in a case: a hidden case of the same program, and a socket between the two.
#pragma once

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "descriptor_message.hpp"
#include "driver_under_test.hpp"

namespace mpsshim::test {

inline constexpr unsigned kWords = 1000;

// The other process: started with the file descriptor number of a socket in this variable.
inline constexpr char kSocketVariable[] = "MPSSHIM_TEST_SOCKET";

struct Pair {
  int ends[2] = {-1, -1};
  Pair() { REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0); }
  ~Pair() {
    close(ends[0]);
    close(ends[1]);
  }
};

inline pid_t start_other(const char* name, const Pair& pair) {
  setenv(kSocketVariable, std::to_string(pair.ends[1]).c_str(), 1);
  const pid_t child = start_case(name);
  unsetenv(kSocketVariable);
  return child;
}

inline int own_socket() { return std::atoi(std::getenv(kSocketVariable)); }

inline void say(int socket, const void* data, size_t bytes) { REQUIRE(send(socket, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes)); }
inline void hear(int socket, void* data, size_t bytes) { REQUIRE(recv(socket, data, bytes, 0) == static_cast<ssize_t>(bytes)); }

inline int exit_of(pid_t child) {
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

inline std::vector<unsigned> words_at(CUdeviceptr address) {
  std::vector<unsigned> words(kWords);
  OK(CU(cuMemcpyDtoH)(words.data(), address, kWords * 4));
  return words;
}

}  // namespace mpsshim::test
