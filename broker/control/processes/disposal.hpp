// SPDX-License-Identifier: Apache-2.0
// Closes what a stranger has had a hand in, at once where that cannot wait for anybody, else by a Closer. The control process's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "broker/control/base/closer.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker::control {

// What whoever destroys a connection has to close: its socket, and descriptors of a kind that nobody wanted.
struct Remains {
  proto::Socket socket;
  std::vector<proto::FileDescriptor> strange;
};

class Disposal {
 public:
  explicit Disposal(EventLoop& loop) : sockets_(loop), files_(loop) {}
  Disposal(const Disposal&) = delete;

  // `closed`: once all of it is; perhaps at once.
  void dispose(Remains remains, std::function<void()> closed);
  [[nodiscard]] Closer& sockets() { return sockets_; }
  [[nodiscard]] Closer& files() { return files_; }

 private:
  // Of what lies in sockets, which a signal hurries; and of files that were sent, which may take for ever.
  Closer sockets_;
  Closer files_;
};

}  // namespace mpsshim::broker::control
