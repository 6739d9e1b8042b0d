// SPDX-License-Identifier: Apache-2.0
// A directory for each group that operators have made, in the broker's own, with a socket in it: who comes in by that one is of the group, whatever
// its environment says (NVIDIA's version 3 has namespaces chosen by such a directory). A container that is given this socket alone has no other
// group. Owned by Server; the control process's thread.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/base/handover.hpp"
#include "broker/control/base/pipe_directory.hpp"
#include "broker/control/sessions/namespaces.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker::control {

class NamespaceSockets {
 public:
  // Somebody waits to be let in there.
  using OnClient = std::function<void(const proto::Socket& listener, const std::string& name)>;
  NamespaceSockets(EventLoop& loop, const PipeDirectory& directory, PipeDirectory::Guests guests, OnClient on_client)
      : loop_(loop), directory_(directory), guests_(guests), on_client_(std::move(on_client)) {}

  // Makes and removes what is missing and what is too much. One that cannot be made is told of: its clients name the group themselves then.
  void follow(const Namespaces& namespaces);
  void set_events(EventLoop::Events events);  // 0: nobody is let in for a while
  // Removes all, and gives the sockets away to be closed.
  [[nodiscard]] std::vector<proto::FileDescriptor> close();

  void save(StateWriter& state) const;
  void restore(StateReader& state);

 private:
  struct Listener {
    proto::Socket socket;
    EventLoop::Watch watch;
  };

  [[nodiscard]] std::string path_of(const std::string& name) const { return directory_.path() + '/' + name; }
  void make(const std::string& name);
  void watch(const std::string& name, proto::Socket socket);
  void remove_files(const std::string& name) const;

  EventLoop& loop_;
  const PipeDirectory& directory_;
  const PipeDirectory::Guests guests_;
  const OnClient on_client_;
  std::map<std::string, Listener> listeners_;  // by name
};

}  // namespace mpsshim::broker::control
