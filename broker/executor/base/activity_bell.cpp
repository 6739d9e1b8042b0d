// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/activity_bell.hpp"

#include <array>
#include <cerrno>

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "broker/log.hpp"

namespace mpsshim::broker {

ActivityBell::ActivityBell() : epoll_(epoll_create1(EPOLL_CLOEXEC)), own_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { listen(own_.get()); }

void ActivityBell::listen(int doorbell) const {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;  // never read: see Worker
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, doorbell, &event) != 0 && errno != EEXIST) {
    log_error("A doorbell cannot be watched for activity (errno {}); a fault after a pause is noticed up to a fraction of a second later", errno);
  }
}

void ActivityBell::forget(int doorbell) const { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, doorbell, nullptr); }

void ActivityBell::ring() const { eventfd_write(own_.get(), 1); }

bool ActivityBell::wait(std::chrono::milliseconds limit) const {
  std::array<epoll_event, 64> edges;
  return epoll_wait(epoll_.get(), edges.data(), static_cast<int>(edges.size()), static_cast<int>(limit.count())) > 0;
}

}  // namespace mpsshim::broker
