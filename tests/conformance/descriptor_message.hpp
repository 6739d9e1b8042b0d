// SPDX-License-Identifier: Apache-2.0
// A file descriptor from one process of a test to another, over a socket of theirs.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>

#include "driver_under_test.hpp"

namespace mpsshim::test {

// One message: a byte and a descriptor. (Opening /proc/PID/fd/N would open the GPU's device file anew instead.)
union DescriptorMessage {
  cmsghdr header;
  char room[CMSG_SPACE(sizeof(int))];
};

inline void send_descriptor(int socket, int fd) {
  char byte = 0;
  iovec data{&byte, 1};
  DescriptorMessage control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof control.room;
  control.header.cmsg_level = SOL_SOCKET;
  control.header.cmsg_type = SCM_RIGHTS;
  control.header.cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
  REQUIRE(sendmsg(socket, &message, MSG_NOSIGNAL) == 1);
}

inline int receive_descriptor(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  DescriptorMessage control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof control.room;
  REQUIRE(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1);
  int fd = -1;
  if (CMSG_FIRSTHDR(&message) != nullptr) std::memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
  return fd;
}

}  // namespace mpsshim::test
