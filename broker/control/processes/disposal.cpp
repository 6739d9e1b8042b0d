// SPDX-License-Identifier: Apache-2.0
#include "broker/control/processes/disposal.hpp"

#include <memory>
#include <utility>

#include "broker/control/base/complaints.hpp"
#include "broker/log_subject.hpp"

namespace mpsshim::broker::control {

void Disposal::dispose(Remains remains, std::function<void()> closed) {
  std::vector<proto::FileDescriptor> sockets;
  if (!remains.socket.hang_up()) {
    const LogSubject subject(remains.socket.peer().uid);
    complain("pid {}: sent descriptors that nobody has asked for; they are closed unread.", remains.socket.peer().pid);
    sockets.push_back(remains.socket.release());
  }
  if (sockets.empty() && remains.strange.empty()) {
    remains.socket.reset();
    return closed();
  }
  const auto strange = std::make_shared<std::vector<proto::FileDescriptor>>(std::move(remains.strange));
  sockets_.close(std::move(sockets), [this, strange, closed = std::move(closed)] {
    if (strange->empty()) return closed();
    files_.close(std::move(*strange), closed);
  });
}

}  // namespace mpsshim::broker::control
