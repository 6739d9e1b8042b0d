// SPDX-License-Identifier: Apache-2.0
// What a test client does with its standard streams: a command a line in, an answer a line out, until the input ends. What a command throws
// is its answer. The first line, "ok attached" or why not, comes without a command.
#pragma once

#include <cstdio>
#include <exception>
#include <iostream>
#include <optional>
#include <string>

namespace mpsshim::test {

// `Client` is made first; its answer(line) does what a command says. The exit status of the program.
template <typename Client>
[[nodiscard]] int converse() {
  std::optional<Client> client;
  std::string line;
  do {
    std::string answer = "ok attached";
    try {
      if (!client)
        client.emplace();
      else
        answer = client->answer(line);
    } catch (const std::exception& failure) {
      answer = failure.what();
    }
    std::printf("%s\n", answer.c_str());
    std::fflush(stdout);
  } while (client && std::getline(std::cin, line));
  return client ? 0 : 1;
}

}  // namespace mpsshim::test
