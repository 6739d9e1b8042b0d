// SPDX-License-Identifier: Apache-2.0
// A test_client (programs/test_client.cpp), or another program that converses like it, and does what it is asked.
//
//   Client client(broker);
//   REQUIRE(client.ask("hold") == "ok");
//
// Used from one thread. begin() and answer() are ask() in halves, for commands during which something else is to happen.
#pragma once

#include <string>

#include "tests/support/broker_fixture.hpp"

namespace mpsshim::test {

class Client {
 public:
  // Attached when this returns; throws where it could not.
  explicit Client(const BrokerFixture& broker, const std::string& program = "test_client") : Client(start(broker, program), Attached::waits) {}
  enum class Attached { waits, not_yet };
  // Of a program that converses, wherever it runs. With not_yet its first answer, "ok attached", is still to come.
  Client(Program program, Attached attached) : program_(std::move(program)) {
    if (attached == Attached::not_yet) return;
    if (const std::string first = answer(); first != "ok attached") throw std::runtime_error("a client did not attach: " + first);
  }
  // Of another user: root alone can begin one. Attached when this returns.
  [[nodiscard]] static Client of_user(const BrokerFixture& broker, unsigned user, const std::string& program = "test_client") {
    return {start(broker, program, user), Attached::waits};
  }
  // Without waiting: its first answer, "ok attached", is still to come.
  [[nodiscard]] static Client begin(const BrokerFixture& broker, const std::string& program) { return {start(broker, program), Attached::not_yet}; }

  // The answer to `command`; one that begins with "no answer" where none came within `limit`.
  [[nodiscard]] std::string ask(const std::string& command, Milliseconds limit = std::chrono::seconds(30)) {
    begin(command);
    return answer(limit);
  }

  void begin(const std::string& command) { (void)program_.say(command); }
  [[nodiscard]] std::string answer(Milliseconds limit = std::chrono::seconds(30)) {
    std::string line;
    const bool came = eventually(limit, [&] { return next_line(line) || !program_.running(); });
    if (next_line(line)) {
      read_ += line.size() + 1;
      return line;
    }
    return std::string("no answer, the client ") + (came ? "has ended: " : "still runs: ") + program_.errors();
  }

  [[nodiscard]] Program& program() { return program_; }

 private:
  static Program start(const BrokerFixture& broker, const std::string& program, unsigned user = 0) {
    ProgramOptions options;
    options.user = user;
    options.converses = true;
    return broker.start(program, options);
  }

  [[nodiscard]] bool next_line(std::string& line) const {
    const std::string output = program_.output();
    const std::size_t end = output.find('\n', read_);
    if (end == std::string::npos) return false;
    line = output.substr(read_, end - read_);
    return true;
  }

  Program program_;
  std::size_t read_ = 0;  // bytes of its output that have been answers
};

// True for an answer that names an error of MPS's own (800 to 819): what a client may get that did nothing wrong.
[[nodiscard]] inline bool is_mps_error(const std::string& answer) { return answer.find(" CUDA_ERROR_MPS_") == 3 && answer.front() == '8'; }

}  // namespace mpsshim::test
