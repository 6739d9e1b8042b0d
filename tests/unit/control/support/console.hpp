// SPDX-License-Identifier: Apache-2.0
// Commands to the broker of a ControlFixture, each answered at once.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "broker/control/server/commands.hpp"
#include "tests/unit/control/support/control_fixture.hpp"

namespace mpsshim::broker::control::testing {

struct Console {
  explicit Console(ControlFixture& broker)
      : commands(broker.manager, [this](std::optional<std::chrono::seconds> seconds) { quit = seconds ? seconds->count() : 1'000'000; }) {}
  std::string ok(const std::string& line) {
    const auto result = execute(line);
    INFO(result.text);
    CHECK(result.ok);
    return result.text;
  }
  std::string error(const std::string& line) {
    const auto result = execute(line);
    CHECK_FALSE(result.ok);
    CHECK_FALSE(result.text.empty());
    return result.text;
  }
  Commands::Result execute(const std::string& line) {
    std::optional<Commands::Result> answered;
    commands.execute(line, [&](const Commands::Result& result) { answered = result; });
    REQUIRE(answered);
    return *answered;
  }
  long quit = -1;
  Commands commands;
};

}  // namespace mpsshim::broker::control::testing
