// SPDX-License-Identifier: Apache-2.0
// The commands of mpsctl (broker/commands/command_table.hpp), a line in and text out. Names and meaning are those of nvidia-cuda-mps-control (NVIDIA
// MPS manual, "Appendix: Tools and Interface Reference"); a server is an executor (ServerNumber). What is not built is an unknown command, never a
// pretended success. Most are answered at once; terminate_client when the client's work has stopped, restart when all is served again. Questions
// (questions.cpp) answer as text, comma-separated values or JSON, of the same cells. Owned by Server; the control process's thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/commands/parsed_command.hpp"
#include "broker/control/manager/session_manager.hpp"

namespace mpsshim::broker::control {

// The answer to `hold` of a broker that will not be there much longer: whoever wants one waits for its end, and starts another.
inline constexpr char kBrokerIsEnding[] = "the broker is ending";

class Commands {
 public:
  struct Result {
    bool ok = true;
    std::string text;  // the answer, or what is wrong with the command
  };
  using Quit = std::function<void(std::optional<std::chrono::seconds> patience)>;  // nothing: as long as clients stay
  using Hold = std::function<Result(pid_t)>;
  using Answer = std::function<void(const Result&)>;
  struct RestartOrder {
    RestOrder rest;
    bool only_executors = false;
  };
  using Restart = std::function<void(const RestartOrder&, Answer)>;

  Commands(SessionManager& manager, Quit quit, Restart restart = nullptr, Hold hold = nullptr)
      : manager_(manager), quit_(std::move(quit)), restart_(std::move(restart)), hold_(std::move(hold)) {}
  // `answer` is called once, now or later. `asker`: the process that asks; 0: it cannot be seen.
  void execute(const std::string& line, Answer answer, pid_t asker = 0) const;
  // True for a command that changes something: those are always logged.
  [[nodiscard]] static bool is_action(const std::string& line);

 private:
  void act(const ParsedCommand& command, const Answer& answer, pid_t asker) const;  // of the others
  [[nodiscard]] Result ask(const ParsedCommand& command) const;  // of the questions
  [[nodiscard]] Result ps(const ParsedCommand& command) const;   // client_facts.cpp
  [[nodiscard]] Result get_server_list(const ParsedCommand& command) const;
  [[nodiscard]] Result get_server_status(const ParsedCommand& command) const;
  [[nodiscard]] Result get_client_list(const ParsedCommand& command) const;
  [[nodiscard]] Result servers(const ParsedCommand& command) const;
  [[nodiscard]] Result get_device_client_list(const ParsedCommand& command) const;
  [[nodiscard]] Result device_query(const ParsedCommand& command) const;
  [[nodiscard]] Result get_memory_limit(const ParsedCommand& command) const;
  [[nodiscard]] Result get_thread_percentage(const ParsedCommand& command) const;
  [[nodiscard]] Result get_client_priority(const ParsedCommand& command) const;
  [[nodiscard]] Result users(const ParsedCommand& command) const;
  [[nodiscard]] Result set_memory_limit(const ParsedCommand& command) const;
  [[nodiscard]] Result set_thread_percentage(const ParsedCommand& command) const;
  [[nodiscard]] Result set_client_priority(const ParsedCommand& command) const;
  [[nodiscard]] Result start_server(uid_t uid) const;
  [[nodiscard]] Result set_server(const ParsedCommand& command) const;
  [[nodiscard]] Result get_server(const ParsedCommand& command) const;
  [[nodiscard]] Result quit(const ParsedCommand& command) const;
  [[nodiscard]] Result hold(const ParsedCommand& command, pid_t asker) const;
  void restart(const ParsedCommand& command, const Answer& answer) const;
  void terminate_client(const ParsedCommand& command, const Answer& answer) const;
  void terminate_sessions(const std::vector<std::uint64_t>& sessions, const Answer& answer) const;
  // client_commands.cpp
  void set_client(const ParsedCommand& command, const Answer& answer) const;
  void terminate_anywhere(const ParsedCommand& command, const Answer& answer) const;
  [[nodiscard]] Result list_clients(const ParsedCommand& command) const;
  [[nodiscard]] Result get_client(const ParsedCommand& command) const;
  [[nodiscard]] Result list_devices(const ParsedCommand& command) const;
  // Of the client that PID names, on that device or on all; none: `fault` says so.
  [[nodiscard]] std::vector<std::uint64_t> sessions_of(const ParsedCommand& command, std::optional<unsigned> device, std::string& fault) const;
  // namespace_commands.cpp
  [[nodiscard]] Result list_namespaces(const ParsedCommand& command) const;
  [[nodiscard]] Result get_namespace(const ParsedCommand& command) const;
  [[nodiscard]] Result change_namespace(const ParsedCommand& command) const;
  void set_namespace(const ParsedCommand& command, const Answer& answer) const;
  [[nodiscard]] Namespaces::Key namespace_key(const ParsedCommand& command) const;
  // partition_commands.cpp
  [[nodiscard]] Result list_chunks(const ParsedCommand& command) const;
  [[nodiscard]] Result list_partitions(const ParsedCommand& command) const;
  [[nodiscard]] Result change_partitions(const ParsedCommand& command) const;
  [[nodiscard]] Result add_partition(const ParsedCommand& command, unsigned device) const;
  [[nodiscard]] Result remove_partition(const ParsedCommand& command, unsigned device) const;
  // A client that was named is to be there; of a group's, those who end meanwhile need no change.
  enum class WhoHasEnded { is_a_fault, needs_nothing };
  // Of those sessions, with what the command's options say, or without; answers once it holds for all of them.
  void change_sessions(const std::vector<std::uint64_t>& sessions, const ClientChange& change, WhoHasEnded ended, const Answer& answer) const;

  // `key`: of the rows in JSON.
  [[nodiscard]] static Result answer_with(const ParsedCommand& command, std::string_view key, const Table& table);
  // FIELD of each row of `whose`, which has columns without headings that say whose it is: the word alone as text.
  [[nodiscard]] static Result answer_field(const ParsedCommand& command, std::string_view key, Table whose, const std::vector<Cell>& values);
  // What an action answers in the form that it is asked for.
  [[nodiscard]] static Result in_form(const ParsedCommand& command, const Result& result);
  // The one that argument `name` of the command names, or what is to be answered where there is none. nullptr and no fault: it names none.
  [[nodiscard]] const ManagedExecutor* server(const ParsedCommand& command, std::string_view name, std::string& fault) const;
  [[nodiscard]] std::optional<unsigned> device(const ParsedCommand& command, std::string& fault, std::string_view name = "DEVICE") const;
  // Why the driver cannot enforce it: then it is not set. "": it can.
  [[nodiscard]] std::string fault_of_percentage(std::uint32_t percentage) const;
  [[nodiscard]] std::string fault_of_priority(std::uint32_t priority) const;

  SessionManager& manager_;
  const Quit quit_;
  const Restart restart_;
  const Hold hold_;
};

}  // namespace mpsshim::broker::control
