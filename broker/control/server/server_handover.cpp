// SPDX-License-Identifier: Apache-2.0
// Server's part in `mpsctl restart`: the installed mpsbroker takes the place of the running one, in the same process. It is asked first whether
// it can; then all sessions come to rest, the executors end, and what there is goes over (handover.hpp).
#include <cerrno>
#include <csignal>
#include <cstring>
#include <set>

#include <fcntl.h>
#include <unistd.h>

#include "broker/control/server/server.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr std::chrono::milliseconds kSealLook{2};
}

void Server::replace_program(const Commands::RestartOrder& order, const Commands::Answer& answer) {
  if (query_) return answer({false, "nothing was changed: another restart is under way"});
  query_ = std::make_unique<HandoverQuery>(loop_, continuation_.program, [this, order, answer](const std::string& refusal) {
    loop_.defer([this] { query_.reset(); });  // it is calling
    const auto refuse = [answer](const std::string& why) { answer({false, "nothing was changed: " + why}); };
    if (!refusal.empty()) return refuse(refusal);
    manager_.heaps().leave_to_command([this, order, refuse, answer] {
      RestOrder rest = order.rest;
      rest.is_of_the_program = true;
      manager_.restarts().bring_to_rest(rest, [this, refuse, answer](const std::string& why) {
        if (!why.empty()) return refuse(why);
        manager_.restarts().retire_executors([this, answer] { loop_.defer([this, answer] { hand_over(answer); }); });
      });
    });
  });
}

// Returns only if the program cannot be executed; then this one goes on.
void Server::hand_over(const Commands::Answer& answer) {
  forget_ended_clients();                // or their sessions would go over with nobody to end them
  // A client that was not waiting for an executor; programs that are being read, which takes two seconds at most.
  if (manager_.images().is_sealing() || manager_.faults().is_weighing()) {
    renew_timer_ = loop_.after(kSealLook, [this, answer] { hand_over(answer); });
    return;
  }
  service_manager_.reloading();
  StateWriter state;
  save(state);
  const proto::FileDescriptor file = state.finish();
  const proto::FileDescriptor former(open("/proc/self/exe", O_PATH | O_CLOEXEC));
  if (file.valid() && former.valid()) {
    log_info("Broker {} (pid {}) hands over to {}: {} sessions, {} descriptors.", MPSSHIM_VERSION, getpid(), continuation_.program,
             manager_.sessions().size(), state.files().size());
    std::vector<std::string> arguments = continuation_.arguments;
    arguments.insert(arguments.end(), {"--resume", std::to_string(file.get()), "--former", std::to_string(former.get())});
    std::vector<int> files = state.files();
    files.push_back(file.get());
    files.push_back(former.get());
    execute(continuation_.program, arguments, files);
  }
  const std::string why = fmt::format("{} cannot be executed ({})", continuation_.program, std::strerror(errno));
  log_error("The hand-over failed: {}. This broker goes on.", why);
  manager_.restarts().start_executors([this, answer, why] {
    service_manager_.ready(serving());
    answer({false, "nothing was changed: " + why});
  });
}

void Server::save(StateWriter& state) {
  state.number(continuation_.arguments.size());
  for (const std::string& argument : continuation_.arguments) state.text(argument);
  state.text(directory_.path());
  state.file(directory_.lock());
  state.text(continuation_.log_dir);
  state.text(continuation_.driver);
  state.file(client_listener_.fd());
  state.file(command_listener_.fd());
  std::uint64_t clients = 0;
  for (const auto& [id, client] : clients_) clients += client->has_ended() ? 0 : 1;
  state.number(clients);
  for (const auto& [id, client] : clients_) {
    if (!client->has_ended()) client->save(state);
  }
  std::vector<const CommandConnection*> pending;
  for (const auto& [id, command] : commands_under_way_) {
    if (!command->pending().empty()) pending.push_back(command.get());
  }
  state.number(pending.size());
  for (const CommandConnection* command : pending) {
    state.text(command->pending());
    state.file(command->fd());
  }
  holders_.save(state);
  state.number(is_client_listener_passed_ ? 1 : 0);
  namespace_sockets_.save(state);
  manager_.save(state);
}

bool Server::resume(StateReader& state, const std::string& failure, std::string& why) {
  resumed_ = true;
  former_children_.take();
  client_listener_ = proto::Socket(state.file());
  command_listener_ = proto::Socket(state.file());
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
    const std::uint64_t id = next_connection_++;
    add_client(
        std::make_unique<ClientConnection>(loop_, manager_, disposal_.files(), state, [this, id] { loop_.defer([this, id] { forget_client(id); }); }),
        id);
  }
  auto askers = std::make_shared<std::vector<proto::Socket>>();
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
    const bool is_restart = state.text().starts_with("restart");  // any other has lost what it waited for: it finds the connection closed
    proto::Socket asker(state.file());
    if (is_restart) askers->push_back(std::move(asker));
  }
  if (state.version() >= 7) holders_.restore(state);
  is_client_listener_passed_ = state.version() >= 9 && state.number() != 0;
  if (state.version() >= 16) namespace_sockets_.restore(state);
  const auto began = EventLoop::Clock::now();
  const bool resumed = manager_.resume(state, why, [this, askers, failure, began] {
    const double took_ms = std::chrono::duration<double, std::milli>(EventLoop::Clock::now() - began).count();
    log_info("Broker {} (pid {}) has taken over, its executors were ready after {:.1f} ms.", MPSSHIM_VERSION, getpid(), took_ms);
    service_manager_.ready(serving());
    const Commands::Result result = failure.empty() ? Commands::Result{true, ""} : Commands::Result{false, "the former broker goes on: " + failure};
    for (const proto::Socket& asker : *askers) CommandConnection::answer_on(asker, result);
    askers->clear();
    idle_end_.look();
  });
  if (!resumed || !state.ok()) return false;
  state.close_inherited();
  watch_listeners();
  // Nobody's work is to end for it.
  if (std::string fault; metrics_ && !metrics_->listen(fault)) log_error("{}; this broker goes on without its figures.", fault);
  std::set<std::uint64_t> claimed;
  for (const auto& [id, client] : clients_) {
    client->resume();
    claimed.insert(client->session());
  }
  manager_.end_all_but(claimed);  // of clients that have gone: nobody else would ever end them
  return true;
}

}  // namespace mpsshim::broker::control
