// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/holders.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "broker/control/base/process_identity.hpp"

namespace mpsshim::broker::control {

bool Holders::add(pid_t pid, std::string& why) {
  if (holders_.contains(pid)) return true;
  proto::FileDescriptor pidfd = open_pidfd(pid);
  if (pid <= 0 || !pidfd.valid()) {
    why = fmt::format("there is no process {} to be seen ({})", pid, pid <= 0 ? "another pid namespace" : std::strerror(errno));
    return false;
  }
  keep(pid, std::move(pidfd));
  return true;
}

void Holders::keep(pid_t pid, proto::FileDescriptor pidfd) {
  Holder& holder = holders_[pid];
  holder.pidfd = std::move(pidfd);
  holder.end = loop_.watch(holder.pidfd.get(), EPOLLIN, [this, pid](EventLoop::Events) {
    loop_.defer([this, pid] {
      holders_.erase(pid);
      changed_();
    });
    holders_.at(pid).end.reset();
  });
}

void Holders::save(StateWriter& state) const {
  state.number(holders_.size());
  for (const auto& [pid, holder] : holders_) {
    state.number(static_cast<std::uint64_t>(pid));
    state.file(holder.pidfd);
  }
}

void Holders::restore(StateReader& state) {
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
    const auto pid = static_cast<pid_t>(state.number());
    if (proto::FileDescriptor pidfd = state.file(); pidfd.valid()) keep(pid, std::move(pidfd));
  }
}

void IdleEnd::look() {
  if (!limit_) return;
  if (is_used_()) return timer_.reset();
  if (timer_) return;
  timer_ = loop_.after(*limit_, [this] {
    timer_.reset();
    if (!is_used_()) end_();
  });
}

}  // namespace mpsshim::broker::control
