// SPDX-License-Identifier: Apache-2.0
// The connection of this process to the control process: one request, one answer, under a lock (proto/handshake.hpp).
//
// Owned by settle.cpp and never destroyed while the process lives. Any thread may call `request`; requests queue at the lock. An answer that
// does not come within the deadline breaks the connection, since a late answer would be taken for the next one; a broken connection answers
// CUDA_ERROR_MPS_CONNECTION_FAILED at once and for ever.
// Trust: the peer's answers are checked for size, magic and type. A host program that closes descriptors it does not know (daemons do) and
// opens something else under our number is noticed before anything is sent into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <sys/types.h>
#include "gen/cuda_api.hpp"

#include "proto/handshake.hpp"
#include "proto/mutex.hpp"
#include "proto/socket.hpp"

namespace mpsshim::interposer {

inline constexpr int kRequestTimeoutMs = 60'000;  // an executor may have to be started, and its driver initialised, before the answer

class Connection {
 public:
  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Connects to the socket at `path`. False if nobody listens there (errno says why). Called once, before any other thread knows this object.
  [[nodiscard]] bool open(const std::string& path);

  // Who listens there; -1 if that cannot be told.
  [[nodiscard]] uid_t peer_uid() const { return socket_.peer().uid; }

  // Sends `question` with `fds` and waits for `answer`. Returns the answer's status; `received` holds its descriptors where that is 0.
  template <typename Request, typename Answer>
  [[nodiscard]] CUresult request(const Request& question, Answer& answer, proto::ReceivedFds& received, std::span<const int> fds = {},
                                 int timeout_ms = kRequestTimeoutMs) {
    const proto::MessageType expected = answer.header.type;
    return exchange(std::as_bytes(std::span(&question, 1)), fds, std::as_writable_bytes(std::span(&answer, 1)), expected, received, timeout_ms);
  }

  // True once the peer is gone or the protocol was broken. Costs a system call: for waits that look up now and then.
  [[nodiscard]] bool is_lost();

  // Null, or why the connection broke. Until greeted() it is this that says so, and nothing is logged: whoever greets knows the broker's path.
  [[nodiscard]] const char* why_lost();
  void greeted();

  // In a child of fork(): the descriptor belongs to the parent's session. Closes the child's copy if the number still means our socket.
  void abandon_after_fork();

 private:
  [[nodiscard]] CUresult exchange(std::span<const std::byte> request, std::span<const int> fds, std::span<std::byte> answer,
                                  proto::MessageType expected, proto::ReceivedFds& received, int timeout_ms);
  [[nodiscard]] bool still_ours() const;
  CUresult lose(const char* why) REQUIRES(mutex_);

  Mutex mutex_;  // one request at a time
  proto::Socket socket_;
  dev_t socket_device_ = 0;
  ino_t socket_inode_ = 0;
  bool greeted_ GUARDED_BY(mutex_) = false;
  const char* lost_ GUARDED_BY(mutex_) = nullptr;  // why, once it is broken
};

}  // namespace mpsshim::interposer
