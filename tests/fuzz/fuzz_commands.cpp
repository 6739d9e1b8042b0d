// SPDX-License-Identifier: Apache-2.0
// The commands of mpsctl as hostile text, a line after another, against a broker with clients. Whatever comes, an answer does too, and only a
// command that was understood ends the broker.
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "broker/control/server/commands.hpp"
#include "proto/handshake.hpp"
#include "tests/fuzz/support/control_stage.hpp"
#include "tests/fuzz/support/fuzz_target.hpp"

using namespace mpsshim;
using namespace mpsshim::fuzz;

namespace {

struct Stage {
  Stage()
      : commands(control.manager(), [this](std::optional<std::chrono::seconds> patience) {
          ++quits;
          last_patience = patience;
        }) {
    for (proto::Socket& client : clients) {
      client = control.connect();
      (void)proto::send_message(client, proto::Hello{});
      control.settle();
      (void)proto::send_message(client, proto::Attach{});
      control.settle();
    }
    require(control.manager().sessions().size() == std::size(clients), "not all clients have a session");
  }
  ControlStage control;
  unsigned quits = 0;
  std::optional<std::chrono::seconds> last_patience;
  broker::control::Commands commands;
  proto::Socket clients[3];
};

std::unique_ptr<Stage> stage;
std::uint64_t records = 0;

void execute(const std::string& line) {
  const unsigned quits = stage->quits;
  ++records;
  using Result = broker::control::Commands::Result;
  const auto answer = std::make_shared<std::optional<Result>>();  // may come later, or never here: no executor stops a client's work
  stage->commands.execute(line, [answer](const Result& result) {
    require(!*answer, "a command was answered twice");
    *answer = result;
  });
  if (!*answer) return require(broker::control::Commands::is_action(line), "a question was not answered at once");
  const Result& result = **answer;
  require(result.ok || !result.text.empty(), "a failure without a word");
  if (stage->quits == quits) return;
  // A line that ends the broker says so, alone or with how long it may take.
  require(result.ok && line.find("quit") != std::string::npos && stage->last_patience.value_or(std::chrono::seconds(0)) >= std::chrono::seconds(0),
          "another command ended the broker");
}

}  // namespace

namespace mpsshim::fuzz {

Input make_input(Random& random) {
  static constexpr const char* kWords[] = {"ps",
                                           "get_server_list",
                                           "get_server_status",
                                           "get_client_list",
                                           "quit",
                                           "--now",
                                           "servers",
                                           "device_query",
                                           "--json",
                                           "--csv",
                                           "--format=csv,noheader",
                                           "--format",
                                           "hold",
                                           "start_server",
                                           "get_device_client_list",
                                           "set_default_device_pinned_mem_limit",
                                           "set_device_pinned_mem_limit",
                                           "get_device_pinned_mem_limit",
                                           "set_default_active_thread_percentage",
                                           "set_active_thread_percentage",
                                           "get_active_thread_percentage",
                                           "12.5",
                                           "client set",
                                           "client get",
                                           "server get",
                                           "namespace get",
                                           "client list",
                                           "client terminate",
                                           "namespace create",
                                           "namespace set",
                                           "namespace list",
                                           "namespace delete",
                                           "device list",
                                           "server list",
                                           "server create",
                                           "server set",
                                           "lspart",
                                           "sm_partition add",
                                           "sm_partition rm",
                                           "sm-partition create",
                                           "sm-partition delete",
                                           "sm-partition list",
                                           "--device",
                                           "--chunks",
                                           "--own-executor",
                                           "P0000001",
                                           "--pinned-memory-request",
                                           "--active-thread-percentage",
                                           "--pinned-memory-limit",
                                           "--client-priority",
                                           "--uid",
                                           "none",
                                           "batch",
                                           "set_default_client_priority",
                                           "1G",
                                           "terminate_client",
                                           "restart",
                                           "-t",
                                           "-p",
                                           "5000",
                                           "help",
                                           "4999",
                                           "0",
                                           "-1",
                                           "1e9",
                                           "",
                                           "999999999999999999999",
                                           "terminate_client",
                                           "restart",
                                           "shutdown_server",
                                           "start_server",
                                           "set_default_active_thread_percentage",
                                           "100",
                                           "\t",
                                           "\xff\xfe",
                                           "%s%n{}{0}"};
  Input input;
  for (std::uint64_t lines = 1 + random() % 8; lines > 0; --lines) {
    for (std::uint64_t words = 1 + random() % 4; words > 0; --words) {
      const char* word = kWords[random() % std::size(kWords)];
      input.insert(input.end(), word, word + std::strlen(word));
      if (words > 1) input.push_back(' ');
    }
    input.push_back('\n');
  }
  return input;
}

std::uint64_t records_so_far() { return records; }
void finish() { stage.reset(); }

}  // namespace mpsshim::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (!stage) stage = std::make_unique<Stage>();
  std::string line;
  for (std::size_t i = 0; i < size; ++i) {
    if (data[i] != '\n') {
      line.push_back(static_cast<char>(data[i]));
      continue;
    }
    execute(line);
    line.clear();
  }
  if (!line.empty()) execute(line);
  return 0;
}
