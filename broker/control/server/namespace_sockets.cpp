// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/namespace_sockets.hpp"

#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/log.hpp"
#include "proto/handshake.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr int kNamespaceBacklog = 256;

std::string socket_in(const std::string& directory) { return directory + '/' + proto::kClientSocketName; }

}  // namespace

void NamespaceSockets::follow(const Namespaces& namespaces) {
  std::set<std::string> wanted;  // two users may have groups of one name: they share the directory
  for (const auto& [key, of] : namespaces.all()) {
    if (of.has_directory) wanted.insert(key.second);
  }
  std::erase_if(listeners_, [&](const auto& entry) {
    if (wanted.contains(entry.first)) return false;
    remove_files(entry.first);
    return true;
  });
  for (const std::string& name : wanted) {
    if (!listeners_.contains(name)) make(name);
  }
}

void NamespaceSockets::make(const std::string& name) {
  const std::string path = path_of(name);
  const bool is_for_all = guests_ == PipeDirectory::Guests::all_users;
  const bool is_made = mkdir(path.c_str(), is_for_all ? 0755 : 0700) == 0;
  struct stat status {};
  if (!is_made && (errno != EEXIST || lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid())) {
    return log_error(
        "Namespace {} has no directory of its own, for {} is something else or cannot be made ({}): its clients name it by MPSSHIM_GROUP.", name,
        path, std::strerror(errno));
  }
  if (is_for_all) chmod(path.c_str(), 0755);  // whatever the umask is
  proto::Socket socket = proto::Socket::listen_at(socket_in(path), kNamespaceBacklog);
  if (!socket.valid() || (is_for_all && chmod(socket_in(path).c_str(), 0666) != 0)) {
    return log_error("No socket can be made in {} ({}): clients of namespace {} name it by MPSSHIM_GROUP.", path, std::strerror(errno), name);
  }
  watch(name, std::move(socket));
}

void NamespaceSockets::watch(const std::string& name, proto::Socket socket) {
  Listener& made = listeners_[name];
  made.socket = std::move(socket);
  made.watch = loop_.watch(made.socket.fd(), EPOLLIN, [this, &made, name](EventLoop::Events) { on_client_(made.socket, name); });
}

void NamespaceSockets::set_events(EventLoop::Events events) {
  for (auto& [name, listener] : listeners_) listener.watch.set_events(events);
}

void NamespaceSockets::remove_files(const std::string& name) const {
  const std::string path = path_of(name);
  unlink(socket_in(path).c_str());
  rmdir(path.c_str());  // which has nothing else, unless somebody put it there
}

std::vector<proto::FileDescriptor> NamespaceSockets::close() {
  std::vector<proto::FileDescriptor> sockets;
  for (auto& [name, listener] : listeners_) {
    remove_files(name);
    listener.watch.reset();
    sockets.push_back(listener.socket.release());
  }
  listeners_.clear();
  return sockets;
}

void NamespaceSockets::save(StateWriter& state) const {
  state.number(listeners_.size());
  for (const auto& [name, listener] : listeners_) {
    state.text(name);
    state.file(listener.socket.fd());
  }
}

void NamespaceSockets::restore(StateReader& state) {
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
    const std::string name = state.text();
    watch(name, proto::Socket(state.file()));
  }
}

}  // namespace mpsshim::broker::control
