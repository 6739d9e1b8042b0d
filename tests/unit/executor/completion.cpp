// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/link/completion.hpp"

#include "tests/support/catch.hpp"

using namespace mpsshim::broker;
using namespace std::chrono_literals;

TEST_CASE("completion: pauses grow with the time waited, to five milliseconds") {
  CHECK(completion_pause(0ns, true) == 5us);
  CHECK(completion_pause(960us, true) == 5us);
  CHECK(completion_pause(1920us, true) == 10us);
  CHECK(completion_pause(192ms, true) == 1ms);
  CHECK(completion_pause(960ms, true) == 5ms);
  CHECK(completion_pause(1h, true) == 5ms);
}

TEST_CASE("completion: on few cores no pause is shorter than 50 us") {
  CHECK(completion_pause(0ns, false) == 50us);
  CHECK(completion_pause(64ms, false) == 1ms);
}
