// SPDX-License-Identifier: Apache-2.0
// The commands of mpsctl, as text in and text out. Names and meaning are those of nvidia-cuda-mps-control (NVIDIA MPS manual, "Appendix: Tools
// and Interface Reference"); a server is an executor (ServerNumber). What is not built is an unknown command, never a pretended success.
// Most are answered at once; terminate_client when the client's work has stopped, restart when all is served again.
// Owned by Server; the control process's thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

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
  using Arguments = std::vector<std::string>;
  [[nodiscard]] Result ps(const Arguments& arguments) const;
  [[nodiscard]] Result get_server_list(const Arguments& arguments) const;
  [[nodiscard]] Result get_server_status(const Arguments& arguments) const;
  [[nodiscard]] Result get_client_list(const Arguments& arguments) const;
  [[nodiscard]] Result servers(const Arguments& arguments) const;
  [[nodiscard]] Result get_device_client_list(const Arguments& arguments) const;
  [[nodiscard]] Result memory_limit(const std::string& name, const Arguments& arguments) const;
  [[nodiscard]] Result start_server(const Arguments& arguments) const;
  [[nodiscard]] Result users(const Arguments& arguments) const;
  [[nodiscard]] Result quit(const Arguments& arguments) const;
  [[nodiscard]] Result hold(const Arguments& arguments, pid_t asker) const;
  void restart(const Arguments& arguments, const Answer& answer) const;
  void terminate_client(const Arguments& arguments, const Answer& answer) const;
  [[nodiscard]] const ManagedExecutor* server(const std::string& pid) const;

  SessionManager& manager_;
  const Quit quit_;
  const Restart restart_;
  const Hold hold_;
};

}  // namespace mpsshim::broker::control
