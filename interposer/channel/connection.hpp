// SPDX-License-Identifier: Apache-2.0
// The connection of this process to the control process: one request, one answer, under a lock (proto/handshake.hpp).
//
// Owned by settle.cpp and never destroyed while the process lives. Any thread may call `request` and `ask`; requests queue at the lock. An answer
// that does not come within the deadline breaks the connection, since a late answer would be taken for the next one; a broken connection answers
// CUDA_ERROR_MPS_CONNECTION_FAILED at once and for ever.
// Trust: an answer is held against its row of the message table, as the broker holds what clients send: one of another length or with other
// descriptors breaks the connection, and its descriptors are closed. A host program that closes descriptors it does not know (daemons do) and
// opens something else under our number is noticed before anything is sent into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <sys/types.h>
#include "gen/cuda_api.hpp"

#include "proto/handshake.hpp"
#include "proto/message_fds.hpp"
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

  // Sends `question`, with `fds`, and waits for `answer`. Returns the answer's status; descriptors come where that is 0.
  template <typename Request, typename Answer>
  [[nodiscard]] CUresult request(const Request& question, proto::Received<Answer>& answer, proto::LentFds<Request> fds = {},
                                 int timeout_ms = kRequestTimeoutMs) {
    proto::ReceivedFds received;
    const CUresult status = exchange(std::as_bytes(std::span(&question, 1)), proto::LentList(proto::kRowOf<Request>, fds.list()),
                                     proto::kRowOf<Answer>, std::as_writable_bytes(std::span(&answer.message, 1)), received, timeout_ms);
    answer.fds = proto::take_fds<Answer>(received);
    return status;
  }
  // The same where an answer has no descriptors.
  template <typename Request, typename Answer>
  [[nodiscard]] CUresult ask(const Request& question, Answer& answer, proto::LentFds<Request> fds = {}) {
    static_assert(proto::kDescriptors<Answer> == 0);
    proto::Received<Answer> received{answer, {}};
    const CUresult status = request(question, received, fds);
    answer = received.message;
    return status;
  }

  // True once the peer is gone or the protocol was broken. Costs a system call: for waits that look up now and then.
  [[nodiscard]] bool is_lost();

  // Null, or why the connection broke. Until greeted() it is this that says so, and nothing is logged: whoever greets knows the broker's path.
  [[nodiscard]] const char* why_lost();
  void greeted();

  // In a child of fork(): the descriptor belongs to the parent's session. Closes the child's copy if the number still means our socket.
  void abandon_after_fork();

 private:
  // `answer` has the size that `expected` says.
  [[nodiscard]] CUresult exchange(std::span<const std::byte> request, const proto::LentList& fds, const proto::MessageRow& expected,
                                  std::span<std::byte> answer, proto::ReceivedFds& received, int timeout_ms);
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
