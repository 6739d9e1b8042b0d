// SPDX-License-Identifier: Apache-2.0
// Processes for whose sake the broker stays (`mpsctl hold`, mpsrun), and the end of a broker that nobody uses any more (--exit-when-idle).
// A holder is known by its pidfd alone: it keeps no descriptor of ours, may become another program, and may end in whatever way.
// Owned by Server; the control process's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include <sys/types.h>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/base/handover.hpp"

namespace mpsshim::broker::control {

class Holders {
 public:
  // `changed` is called when one has ended.
  Holders(EventLoop& loop, std::function<void()> changed) : loop_(loop), changed_(std::move(changed)) {}

  // Until `pid` ends. Twice is once. False, with a sentence in `why`: there is no such process to be seen.
  [[nodiscard]] bool add(pid_t pid, std::string& why);
  [[nodiscard]] bool empty() const { return holders_.empty(); }

  void save(StateWriter& state) const;
  void restore(StateReader& state);

 private:
  struct Holder {
    proto::FileDescriptor pidfd;
    EventLoop::Watch end;
  };
  void keep(pid_t pid, proto::FileDescriptor pidfd);

  EventLoop& loop_;
  const std::function<void()> changed_;
  std::map<pid_t, Holder> holders_;
};

class IdleEnd {
 public:
  // `limit`: nothing: the broker stays however long nobody uses it.
  IdleEnd(EventLoop& loop, std::optional<std::chrono::seconds> limit, std::function<bool()> is_used, std::function<void()> end)
      : loop_(loop), limit_(limit), is_used_(std::move(is_used)), end_(std::move(end)) {}

  // Somebody has come or gone. Not before the broker serves: whoever starts it is given the whole time.
  void look();

 private:
  EventLoop& loop_;
  const std::optional<std::chrono::seconds> limit_;
  const std::function<bool()> is_used_;
  const std::function<void()> end_;
  EventLoop::Timer timer_;  // runs while nobody uses it
};

}  // namespace mpsshim::broker::control
