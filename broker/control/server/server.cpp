// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/server.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/control/base/complaints.hpp"
#include "broker/control/server/metrics_text.hpp"
#include "broker/log.hpp"
#include "broker/log_subject.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr int kBacklog = 1024;  // a whole job's ranks may come at once
constexpr std::chrono::milliseconds kDepartureLook{50};
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::size_t kMostClosing = 256;  // connections that take long to close, before no more are let in: each holds a descriptor
constexpr std::chrono::milliseconds kNextLook{5};
constexpr std::chrono::seconds kNextLimit{30};  // then the executors are renewed all the same: clients wait for a whole start
constexpr std::size_t kMaxCommands = 64;  // connections of mpsctl at a time

}  // namespace

Server::Server(PipeDirectory directory, ExecutorLauncher& launcher, CompilerLauncher& compilers, CompilerLauncher& linkers,
               const ExecutorSettings& executors, const SessionLimits& limits, const ServerOptions& options,
               std::function<void(const std::string&)> on_settled)
    : directory_(std::move(directory)),
      options_(options),
      on_settled_(std::move(on_settled)),
      manager_(loop_, launcher, executors, limits,
               {.facts_published =
                    [this] {
                      for (auto& [id, client] : clients_) client->facts_published();
                      settle("");
                      idle_end_.look();
                    },
                .cannot_start =
                    [this](const std::string& why) {
                      log_error("No driver serves: {}. Name one with --driver, or look at server.log.", why);
                      exit_status_ = 1;
                      settle(why);
                      quit_now();
                    },
                .stopped = [this] { loop_.stop(); }},
               &compilers, &linkers),
      commands_(
          manager_, [this](std::optional<std::chrono::seconds> patience) { quit(patience); },
          [this](const Commands::RestartOrder& order, const Commands::Answer& answer) { restart(order, answer); },
          [this](pid_t pid) { return hold(pid); }),
      namespace_sockets_(loop_, directory_, limits.serves_all_users ? PipeDirectory::Guests::all_users : PipeDirectory::Guests::own_user,
                         [this](const proto::Socket& listener, const std::string& name) { accept_client(listener, name); }),
      idle_end_(
          loop_, options.exit_when_idle, [this] { return quitting_ || restarting_ || !clients_.empty() || !holders_.empty(); },
          [this] {
            log_info("Nobody has used this broker for {} s (--exit-when-idle): it ends.", options_.exit_when_idle->count());
            quit(std::chrono::seconds(0));
          }) {
  if (options_.metrics) {
    metrics_ = std::make_unique<MetricsServer>(loop_, *options_.metrics, [this](std::uint64_t dropped) { return metrics_of(manager_, dropped); });
  }
}

Server::~Server() { stop_listening(); }

// New programs find no broker at once, rather than one that is about to go.
void Server::stop_listening() {
  client_watch_.reset();
  command_watch_.reset();
  accept_timer_.reset();
  if (client_listener_.valid() && !is_client_listener_passed_) unlink(directory_.client_socket().c_str());
  if (command_listener_.valid()) unlink(directory_.control_socket().c_str());
  // With all that lies in the sockets of those who were not let in any more.
  manager_.namespaces().on_change([] {});
  std::vector<proto::FileDescriptor> listeners = namespace_sockets_.close();
  for (proto::Socket* const listener : {&client_listener_, &command_listener_}) {
    if (listener->valid()) listeners.push_back(listener->release());
  }
  if (!listeners.empty()) disposal_.sockets().close(std::move(listeners), [] {});
}

bool Server::listen(proto::FileDescriptor passed, std::string& why) {
  is_client_listener_passed_ = passed.valid();
  client_listener_ = is_client_listener_passed_ ? proto::Socket(std::move(passed)) : proto::Socket::listen_at(directory_.client_socket(), kBacklog);
  if (client_listener_.valid()) command_listener_ = proto::Socket::listen_at(directory_.control_socket(), kBacklog);
  if (!command_listener_.valid()) {
    why = fmt::format("no socket can be made in {} ({}): {}name another directory with --pipe-dir", directory_.path(), std::strerror(errno),
                      errno == EADDRINUSE ? "where systemd listens there, start its mpsshim.service, or " : "");
    return false;
  }
  // Who may come in is decided by uid, in the handshake: the sockets themselves are open to all users only where all are served.
  if (!is_client_listener_passed_ && manager_.limits().serves_all_users && chmod(directory_.client_socket().c_str(), 0666) != 0) {
    why = fmt::format("{} cannot be opened to all users ({})", directory_.client_socket(), std::strerror(errno));
    return false;
  }
  if (metrics_ && !metrics_->listen(why)) return false;
  watch_listeners();
  return true;
}

void Server::watch_listeners() {
  client_watch_ = loop_.watch(client_listener_.fd(), EPOLLIN, [this](EventLoop::Events) { accept_client(client_listener_, ""); });
  command_watch_ = loop_.watch(command_listener_.fd(), EPOLLIN, [this](EventLoop::Events) { accept_command(); });
  manager_.namespaces().on_change([this] { namespace_sockets_.follow(manager_.namespaces()); });
  namespace_sockets_.follow(manager_.namespaces());
}

int Server::run() {
  watch_signals();
  log_info("Broker {} (pid {}) serves uid {} in {}.", MPSSHIM_VERSION, getpid(), geteuid(), directory_.path());
  if (!resumed_) manager_.start();
  loop_.run();
  log_info("Broker (pid {}) ends.", getpid());
  return exit_status_;
}

void Server::watch_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  has_terminal_ = proto::FileDescriptor(open("/dev/tty", O_RDONLY | O_CLOEXEC | O_NOCTTY)).valid();
  signals_ = proto::FileDescriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  signal_watch_ = loop_.watch(signals_.get(), EPOLLIN, [this](EventLoop::Events) {
    signalfd_siginfo info{};
    if (read(signals_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return;
    obey_signal(static_cast<int>(info.ssi_signo), static_cast<pid_t>(info.ssi_pid));
  });
  loop_.serve_first(signal_watch_);  // executors may have been sent the same signal, and are not to be started again
}

void Server::obey_signal(int number, pid_t sender) {
  if (number == SIGHUP && !has_terminal_) return reopen_logs();
  log_info("Signal {} ({}) from pid {}: the broker quits.", number, strsignal(number), sender);
  for (auto& [id, client] : clients_) client->refuse_sessions();
  quit_timer_.reset();
  quit_now();
}

// Executors see by themselves that the file has another name now.
void Server::reopen_logs() {
  service_manager_.reloading();
  reopen_log_files();
  if (options_.reopen_output) options_.reopen_output();
  log_info("Broker {} (pid {}): the logs are opened anew.", MPSSHIM_VERSION, getpid());
  service_manager_.ready(serving());
}

void Server::settle(const std::string& why) {
  auto settled = std::exchange(on_settled_, nullptr);
  if (!settled) return;
  settled(why);
  if (why.empty()) return service_manager_.ready(serving());
  service_manager_.status("No driver serves: " + why);
}

std::string Server::serving() const {
  return fmt::format("Serves {} in {}.", manager_.limits().serves_all_users ? "all users" : fmt::format("uid {}", geteuid()), directory_.path());
}

// `group`: whose directory that one is in.
void Server::accept_client(const proto::Socket& listener, const std::string& group) {
  if (disposal_.sockets().pending() >= kMostClosing) return pause_accepting();
  proto::Socket socket = listener.accept();
  if (!socket.valid()) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM) return;
    log_error("A client cannot be accepted ({}); raise the limit of open files (ulimit -n) and start the broker again.", std::strerror(errno));
    return pause_accepting();
  }
  const LogSubject subject(socket.peer().uid);
  if (!may_connect(socket.peer())) return disposal_.dispose({std::move(socket), {}}, [] {});
  const std::uint64_t id = next_connection_++;
  auto connection = std::make_unique<ClientConnection>(loop_, manager_, disposal_.files(), std::move(socket), group,
                                                       [this, id] { loop_.defer([this, id] { forget_client(id); }); });
  if (quitting_) connection->refuse_sessions();
  add_client(std::move(connection), id);
}

void Server::add_client(std::unique_ptr<ClientConnection> connection, std::uint64_t id) {
  ++connections_;
  ++connections_of_[connection->pid()];
  ++user_connections_[connection->uid()];
  clients_.emplace(id, std::move(connection));
  idle_end_.look();
}

// A process that connects without end takes nobody else's place.
bool Server::may_connect(const proto::PeerCredentials& peer) const {
  const ResourceLimits& limits = manager_.limits().resources;
  const auto found = connections_of_.find(peer.pid);
  // 0: of a pid namespace we do not see, where processes cannot be told apart.
  if (peer.pid > 0 && found != connections_of_.end() && found->second >= limits.process_connections) {
    complain("pid {} is refused: it has {} connections already, and a process needs one.", peer.pid, found->second);
    return false;
  }
  const auto of_user = user_connections_.find(peer.uid);
  if (limits.user.connections != 0 && of_user != user_connections_.end() && of_user->second >= limits.user.connections) {
    complain("pid {} is refused: user {} has {} connections already, which is the limit for one user (--user-connections).", peer.pid, peer.uid,
             of_user->second);
    return false;
  }
  if (connections_ >= limits.connections) {
    complain("pid {} is refused: there are {} connections already, which is what the broker's limit of open files allows (ulimit -n).", peer.pid,
             connections_);
    return false;
  }
  return true;
}

void Server::forget_client(std::uint64_t id) {
  const auto client = clients_.find(id);
  if (client == clients_.end()) return;
  Remains remains = client->second->take_remains();
  const pid_t pid = client->second->pid();
  const uid_t uid = client->second->uid();
  clients_.erase(client);
  idle_end_.look();
  // It counts until it is closed: a process that makes that take long has fewer connections for it.
  disposal_.dispose(std::move(remains), [this, pid, uid] {
    --connections_;
    const auto release = [](auto& counts, auto whose) {
      const auto count = counts.find(whose);
      if (--count->second == 0) counts.erase(count);
    };
    release(connections_of_, pid);
    release(user_connections_, uid);
  });
}

void Server::forget_ended_clients() {
  std::vector<std::uint64_t> ended;
  for (const auto& [id, client] : clients_) {
    if (client->has_ended()) ended.push_back(id);
  }
  for (const std::uint64_t id : ended) forget_client(id);
}

// Who waits to be let in stays in the queue; without a pause the loop would spin on it.
void Server::pause_accepting() {
  client_watch_.set_events(0);
  command_watch_.set_events(0);
  namespace_sockets_.set_events(0);
  accept_timer_ = loop_.after(kAcceptPause, [this] {
    client_watch_.set_events(EPOLLIN);
    command_watch_.set_events(EPOLLIN);
    namespace_sockets_.set_events(EPOLLIN);
  });
}

void Server::accept_command() {
  if (disposal_.sockets().pending() >= kMostClosing) return pause_accepting();
  proto::Socket socket = command_listener_.accept();
  if (!socket.valid()) return;
  // Whoever asks next finds room again: a command that does not come is given up.
  if (commands_under_way_.size() >= kMaxCommands) return disposal_.dispose({std::move(socket), {}}, [] {});
  const std::uint64_t id = next_connection_++;
  commands_under_way_.emplace(
      id, std::make_unique<CommandConnection>(loop_, commands_, std::move(socket), [this, id] { loop_.defer([this, id] { forget_command(id); }); }));
}

void Server::forget_command(std::uint64_t id) {
  const auto command = commands_under_way_.find(id);
  if (command == commands_under_way_.end()) return;
  disposal_.dispose({command->second->take_socket(), {}}, [] {});
  commands_under_way_.erase(command);
}

void Server::quit(std::optional<std::chrono::seconds> patience) {
  quitting_ = true;
  for (auto& [id, client] : clients_) client->refuse_sessions();
  if (const std::size_t sessions = manager_.sessions().size(); sessions != 0 && patience != std::chrono::seconds(0)) {
    log_info("The broker quits once its {} client{} left{}; it takes no new one.", sessions, sessions == 1 ? " has" : "s have",
             patience ? fmt::format(", or in {} s", patience->count()) : "");
  }
  if (!patience) return await_departure(std::nullopt);
  await_departure(EventLoop::Clock::now() + *patience);
}

Commands::Result Server::hold(pid_t pid) {
  if (quitting_) return {false, kBrokerIsEnding};
  if (!options_.exit_when_idle) return {true, ""};  // it stays anyway, also for whom it cannot see
  std::string why;
  if (!holders_.add(pid, why)) return {false, why};
  idle_end_.look();
  return {true, ""};
}

void Server::restart(const Commands::RestartOrder& order, const Commands::Answer& answer) {
  if (std::exchange(restarting_, true)) return answer({false, "nothing was changed: another restart is under way"});
  const Commands::Answer once = [this, answer](const Commands::Result& result) {
    restarting_ = false;
    answer(result);
    idle_end_.look();
  };
  if (order.only_executors) return renew_executors(order, once);
  replace_program(order, once);
}

// The next lives are started while the present ones serve, so that clients wait for milliseconds.
void Server::renew_executors(const Commands::RestartOrder& order, const Commands::Answer& answer) {
  manager_.heaps().leave_to_command([this, order, answer] { await_next(order, answer, EventLoop::Clock::now() + kNextLimit); });
}

void Server::await_next(const Commands::RestartOrder& order, const Commands::Answer& answer, EventLoop::Clock::time_point until) {
  if (!manager_.restarts().prepare_next_lives() && EventLoop::Clock::now() < until) {
    renew_timer_ = loop_.after(kNextLook, [this, order, answer, until] { await_next(order, answer, until); });
    return;
  }
  manager_.restarts().bring_to_rest(order.rest, [this, answer](const std::string& why) {
    if (!why.empty()) {
      for (const auto& [id, executor] : manager_.executors()) executor->drop_next();
      return answer({false, "nothing was changed: " + why});
    }
    const auto began = EventLoop::Clock::now();
    manager_.restarts().renew_executors([answer, began, count = manager_.sessions().size()] {
      log_info("The executors were renewed in {:.1f} ms for {} sessions.",
               std::chrono::duration<double, std::milli>(EventLoop::Clock::now() - began).count(), count);
      answer({true, ""});
    });
  });
}

void Server::await_departure(std::optional<EventLoop::Clock::time_point> until) {
  if (manager_.sessions().empty() || (until && EventLoop::Clock::now() >= *until)) {
    loop_.defer([this] { quit_now(); });  // after the answer to the command that asked for it
    return;
  }
  quit_timer_ = loop_.after(kDepartureLook, [this, until] { await_departure(until); });
}

// Only now: what is stopping may be killed after a time, and to wait for clients is no part of that.
void Server::quit_now() {
  quitting_ = true;
  service_manager_.stopping();
  stop_listening();
  manager_.quit(CUDA_ERROR_MPS_CLIENT_TERMINATED);
}

}  // namespace mpsshim::broker::control
