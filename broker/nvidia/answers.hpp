// SPDX-License-Identifier: Apache-2.0
// What nvidia-cuda-mps-control answers, to the letter as far as it was recorded (docs/experiments/2026-11-25-control-answers.md,
// 2026-11-27-control-answers-of-a-server.md), asked of our broker: for scripts that were written for that program. It knows the commands of NVIDIA's
// version 2 and no other, takes words for numbers as C's atoi() does, and tells errors among its answers. A server is there from its first client on,
// or when it was asked for. Used from one thread. Nothing here prints.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/ctl/broker_client.hpp"

namespace mpsshim::broker::nvidia {

class Answers {
 public:
  using Ask = std::function<ctl::Answer(const std::string& command)>;  // of our broker
  explicit Answers(Ask ask) : ask_(std::move(ask)) {}

  // What is to be printed. nullopt: there is no broker any more.
  [[nodiscard]] std::optional<std::string> answer(const std::string& line);
  // Of a command in the arguments, which may be one of version 3's, too: those are asked as they are.
  [[nodiscard]] std::optional<std::string> answer_argument(const std::string& line);

 private:
  using Words = std::vector<std::string>;
  struct Server {
    long number = 0;
    long pid = 0;
    std::string uuid;  // its device's
  };
  using Handler = std::string (Answers::*)(const Words& words);
  struct Row {
    std::string_view command;
    Handler handler;
  };
  [[nodiscard]] static const Row* find(std::string_view command);
  [[nodiscard]] static long number_at(const Words& words, std::size_t place);  // 0: the word is no number, or there is none
  [[nodiscard]] static std::string unknown_command(std::string_view name);

  // The answer; what our broker refuses, as the line it says.
  std::string ask(const std::string& command);
  // "": it refuses.
  std::string value_of(const std::string& command);
  [[nodiscard]] std::vector<Server> servers();
  // The rows of a list, without those that lack columns.
  [[nodiscard]] std::vector<Words> rows_of(const std::string& command, std::size_t columns);
  // The server that the word at that place names, as our broker calls it. Where it names none: "", and `answer` is what is said then.
  [[nodiscard]] std::string server_at(const Words& words, std::size_t place, std::string& answer);

  std::string get_server_list(const Words& words);
  std::string get_server_status(const Words& words);
  std::string start_server(const Words& words);
  std::string shutdown_server(const Words& words);
  std::string get_client_list(const Words& words);
  std::string get_device_client_list(const Words& words);
  std::string ps(const Words& words);
  std::string terminate_client(const Words& words);
  std::string quit(const Words& words);
  std::string default_percentage(const Words& words);
  std::string percentage(const Words& words);
  std::string default_memory_limit(const Words& words);
  std::string memory_limit(const Words& words);
  std::string default_priority(const Words& words);
  std::string device_query(const Words& words);
  std::string sm_partition(const Words& words);
  std::string lspart(const Words& words);
  // Of lspart's table. nullopt: the broker has no static partitions.
  [[nodiscard]] std::optional<std::vector<Words>> partition_rows();

  const Ask ask_;
  bool is_lost_ = false;
};

}  // namespace mpsshim::broker::nvidia
