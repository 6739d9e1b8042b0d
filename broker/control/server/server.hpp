// SPDX-License-Identifier: Apache-2.0
// The control process: its two listening sockets, its connections, its signals, its end. Everything else is in the parts it owns.
// One thread. run() returns when SIGTERM, SIGINT or `mpsctl quit` has been obeyed, when nobody has used it for --exit-when-idle, or when no driver
// serves. SIGHUP has the logs opened anew; of a broker with a terminal it says that the terminal has gone, and is obeyed as SIGTERM.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/base/handover.hpp"
#include "broker/control/base/pipe_directory.hpp"
#include "broker/control/base/service_manager.hpp"
#include "broker/control/manager/session_manager.hpp"
#include "broker/control/processes/disposal.hpp"
#include "broker/control/processes/former_children.hpp"
#include "broker/control/server/client_connection.hpp"
#include "broker/control/server/command_connection.hpp"
#include "broker/control/server/commands.hpp"
#include "broker/control/server/holders.hpp"
#include "broker/control/server/metrics_server.hpp"
#include "broker/control/server/namespace_sockets.hpp"

namespace mpsshim::broker::control {

struct ServerOptions {
  std::optional<std::chrono::seconds> exit_when_idle;  // after so long without clients and holders; nothing: never
  std::function<void()> reopen_output;                 // SIGHUP: standard output and error, where they are a log
  std::optional<MetricsAddress> metrics;               // where figures for Prometheus are; nothing: nowhere
};

class Server {
 public:
  // `on_settled` is called once: with "" when the first executor is ready, or with why there will be none.
  Server(PipeDirectory directory, ExecutorLauncher& launcher, CompilerLauncher& compilers, CompilerLauncher& linkers,
         const ExecutorSettings& executors, const SessionLimits& limits, const ServerOptions& options,
         std::function<void(const std::string&)> on_settled);
  ~Server();

  // False, with a sentence in `why`, if the sockets cannot be made. `passed`: that of clients, where a service manager has made it.
  [[nodiscard]] bool listen(proto::FileDescriptor passed, std::string& why);
  // How this process would be started again, for `mpsctl restart`: the program that is installed now, and what it needs to come to itself.
  struct Continuation {
    std::string program;
    std::vector<std::string> arguments;
    std::string log_dir;
    std::string driver;
  };
  void set_continuation(Continuation continuation) { continuation_ = std::move(continuation); }
  // In place of listen(): goes on where another program in this process left off (server_handover.cpp). `failure` is why a newer one could not,
  // if that is why. False, with a sentence in `why`, if this one cannot; it must not be destroyed then, for the sockets are others'.
  [[nodiscard]] bool resume(StateReader& state, const std::string& failure, std::string& why);
  // The process's exit status.
  [[nodiscard]] int run();
  // Waits for clients to leave, at most `patience` (nothing: as long as it takes); new sessions are refused meanwhile. Whoever is left then gets
  // CUDA_ERROR_MPS_CLIENT_TERMINATED. A later call changes the patience of one before.
  void quit(std::optional<std::chrono::seconds> patience);

  [[nodiscard]] EventLoop& loop() { return loop_; }

 private:
  void watch_signals();
  void obey_signal(int number, pid_t sender);
  void reopen_logs();
  void accept_client(const proto::Socket& listener, const std::string& group);
  void accept_command();
  [[nodiscard]] bool may_connect(const proto::PeerCredentials& peer) const;
  void forget_command(std::uint64_t id);
  void pause_accepting();
  void add_client(std::unique_ptr<ClientConnection> connection, std::uint64_t id);
  void forget_client(std::uint64_t id);
  // Those that have ended, whose turn to be forgotten has not come yet.
  void forget_ended_clients();
  void settle(const std::string& why);
  void restart(const Commands::RestartOrder& order, const Commands::Answer& answer);
  void replace_program(const Commands::RestartOrder& order, const Commands::Answer& answer);
  void hand_over(const Commands::Answer& answer);
  void save(StateWriter& state);
  void watch_listeners();
  void renew_executors(const Commands::RestartOrder& order, const Commands::Answer& answer);
  void await_next(const Commands::RestartOrder& order, const Commands::Answer& answer, EventLoop::Clock::time_point until);
  void await_departure(std::optional<EventLoop::Clock::time_point> until);
  [[nodiscard]] Commands::Result hold(pid_t pid);
  void quit_now();
  [[nodiscard]] std::string serving() const;  // for a service manager
  void stop_listening();

  EventLoop loop_;
  ServiceManager service_manager_{loop_};
  Disposal disposal_{loop_};
  const PipeDirectory directory_;
  const ServerOptions options_;
  std::function<void(const std::string&)> on_settled_;
  SessionManager manager_;
  const Commands commands_;
  proto::Socket client_listener_;
  proto::Socket command_listener_;
  proto::FileDescriptor signals_;
  NamespaceSockets namespace_sockets_;
  EventLoop::Watch client_watch_;
  EventLoop::Watch command_watch_;
  EventLoop::Watch signal_watch_;
  EventLoop::Timer quit_timer_;
  EventLoop::Timer accept_timer_;
  EventLoop::Timer renew_timer_;
  IdleEnd idle_end_;
  FormerChildren former_children_{loop_};
  Holders holders_{loop_, [this] { idle_end_.look(); }};
  Continuation continuation_;
  std::unique_ptr<HandoverQuery> query_;
  bool restarting_ = false;  // by a command that has not been answered yet
  bool resumed_ = false;
  bool is_client_listener_passed_ = false;  // then its file is not ours to remove
  bool quitting_ = false;
  bool has_terminal_ = false;
  int exit_status_ = 0;
  std::uint64_t next_connection_ = 1;
  std::map<std::uint64_t, std::unique_ptr<ClientConnection>> clients_;
  std::size_t connections_ = 0;                  // those included that are still being closed
  std::map<pid_t, std::size_t> connections_of_;  // by process
  std::map<uid_t, std::size_t> user_connections_;
  std::map<std::uint64_t, std::unique_ptr<CommandConnection>> commands_under_way_;
  std::unique_ptr<MetricsServer> metrics_;  // null: there are none to be had
};

}  // namespace mpsshim::broker::control
