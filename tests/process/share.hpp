// SPDX-License-Identifier: Apache-2.0
// Questions to share_client (programs/share_client.cpp), and programs with variables of their own.
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "tests/process/client.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

namespace mpsshim::test {

inline Client start_with(const BrokerFixture& broker, const std::string& program, const std::map<std::string, std::string>& environment = {}) {
  ProgramOptions options;
  options.converses = true;
  options.environment = environment;
  return {broker.start(program, options), Client::Attached::waits};
}

inline unsigned number(Client& client, const std::string& question) {
  const std::string answer = client.ask(question);
  INFO(question << ": " << answer);
  REQUIRE(answer.starts_with("ok "));
  return static_cast<unsigned>(std::stoul(answer.substr(3)));
}

// So many multiprocessors. On a GPU some more: a share may have the last part, which is larger where the driver leaves some over.
inline bool are_its_own(std::size_t found, std::size_t wanted) {
  constexpr std::size_t kLargestPart = 8;
  return found == wanted || (on_gpu() && found > wanted && found < wanted + kLargestPart);
}

// The multiprocessors on which blocks of that kind of launch have run.
inline std::set<unsigned> where(Client& client, const std::string& kind) {
  const std::string answer = client.ask("where " + kind, std::chrono::seconds(60));
  INFO(kind << ": " << answer << '\n' << client.program().errors());
  REQUIRE(answer.starts_with("ok "));
  std::istringstream words(answer.substr(3));
  std::set<unsigned> found;
  for (unsigned word = 0; words >> word;) found.insert(word);
  return found;
}

}  // namespace mpsshim::test
