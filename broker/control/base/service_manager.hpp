// SPDX-License-Identifier: Apache-2.0
// What a service manager gives a broker, and what it is told by it: systemd, or whoever plays its part. Socket activation as sd_listen_fds(3) has it,
// notifications and the watchdog as sd_notify(3) has them; both are formats for good, so no library of systemd's is loaded into a process of root's
// for two environment variables and a datagram.
//
// The listening socket of clients alone may be passed: what mpsctl asks must not start a broker. The socket is the manager's: the broker takes it,
// and neither removes its file nor cares who else holds it, so that connections that come after its end wait for the next broker.
//
// Owned by Server; the control process's thread. Nothing here waits: what the manager does not take at once is sent a little later.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "broker/control/base/event_loop.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker::control {

// True where LISTEN_PID names this process: it has been passed sockets.
[[nodiscard]] bool has_passed_sockets();
// The socket that was passed under the name "clients"; invalid where none was. LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES are unset, whomever they
// were for. nullopt, with a sentence in `why`: what was passed is not a listening socket at `path`, or there is more than that.
[[nodiscard]] std::optional<proto::FileDescriptor> take_client_listener(const std::string& path, std::string& why);

class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, which stay for the program that a restart puts in this one's place. Where they are not set,
  // or for another process, nothing is sent. With a watchdog the loop's own timer sends a sign of life, twice as often as is asked for: a loop that
  // hangs sends none.
  explicit ServiceManager(EventLoop& loop);

  // `status` is a sentence for whoever asks the manager about the service; made printable here.
  void ready(std::string_view status);
  void reloading();  // until ready()
  void stopping();   // for good
  void status(std::string_view sentence);

 private:
  void send(std::string state);
  void send_waiting();
  void keep_watchdog();

  EventLoop& loop_;
  std::string address_;  // empty: nobody listens
  bool is_stopping_ = false;
  std::chrono::milliseconds watchdog_{0};
  std::deque<std::string> waiting_;
  EventLoop::Timer watchdog_timer_;
  EventLoop::Timer retry_;
};

}  // namespace mpsshim::broker::control
