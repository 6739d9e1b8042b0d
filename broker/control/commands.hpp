// SPDX-License-Identifier: Apache-2.0
// The commands of mpsctl, as text in and text out. Names and meaning are those of nvidia-cuda-mps-control (NVIDIA MPS manual, "Appendix: Tools
// and Interface Reference"); a server is an executor process. What is not built is an unknown command, never a pretended success.
// Owned by Server; the control process's thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "broker/control/session_manager.hpp"

namespace mpsshim::broker::control {

class Commands {
 public:
  struct Result {
    bool ok = true;
    std::string text;  // the answer, or what is wrong with the command
  };
  using Quit = std::function<void(std::chrono::seconds patience)>;

  Commands(const SessionManager& manager, Quit quit) : manager_(manager), quit_(std::move(quit)) {}
  [[nodiscard]] Result execute(const std::string& line) const;

 private:
  using Arguments = std::vector<std::string>;
  [[nodiscard]] Result ps(const Arguments& arguments) const;
  [[nodiscard]] Result get_server_list(const Arguments& arguments) const;
  [[nodiscard]] Result get_server_status(const Arguments& arguments) const;
  [[nodiscard]] Result get_client_list(const Arguments& arguments) const;
  [[nodiscard]] Result quit(const Arguments& arguments) const;
  [[nodiscard]] const Executor* server(const std::string& pid) const;

  const SessionManager& manager_;
  const Quit quit_;
};

}  // namespace mpsshim::broker::control
