// SPDX-License-Identifier: Apache-2.0
// When a GPU whose probe is out is taken to stand still.
#include "broker/executor/process/stall_suspicion.hpp"

#include "tests/support/catch.hpp"

namespace mpsshim::broker {
namespace {

using std::chrono::microseconds;

struct Probed {
  StallSuspicion suspicion;
  StallSuspicion::Clock::time_point now{};

  explicit Probed(bool at_once = true) { suspicion.begin(at_once, now); }
  bool look(bool has_ended, microseconds later = microseconds(40)) {
    now += later;
    suspicion.look(has_ended, now);
    return suspicion.is_stalled(now);
  }
};

}  // namespace

TEST_CASE("a GPU on which nothing ends is suspected as long as its probe is out") {
  Probed probed;
  CHECK(probed.suspicion.is_stalled(probed.now));
  for (int i = 0; i < 100; ++i) CHECK(probed.look(false));
  CHECK(probed.suspicion.is_question_due(probed.now));
}

// Others' work ends all the while, where the probe stands behind it in its connection.
TEST_CASE("work that ends clears a GPU, however long the probe is out") {
  Probed probed;
  CHECK(probed.look(true));  // it may have ended before the probe was launched
  for (int i = 0; i < 1'000; ++i) {
    CHECK_FALSE(probed.look(i % 3 == 0));
    CHECK_FALSE(probed.suspicion.is_question_due(probed.now));
  }
}

TEST_CASE("a GPU that was cleared and stands still after that is suspected again") {
  Probed probed;
  (void)probed.look(false);
  CHECK_FALSE(probed.look(true));
  CHECK_FALSE(probed.look(false, StallSuspicion::kStill - microseconds(1)));
  CHECK(probed.look(false, microseconds(1)));
  CHECK_FALSE(probed.suspicion.is_question_due(probed.now));
  CHECK(probed.look(false, StallSuspicion::kPatience));
  CHECK(probed.suspicion.is_question_due(probed.now));
  CHECK_FALSE(probed.look(true));
}

TEST_CASE("with few cores a GPU is not suspected before it has stood for a while") {
  Probed probed(false);
  CHECK_FALSE(probed.look(false, StallSuspicion::kPatience - microseconds(1)));
  CHECK(probed.look(false, microseconds(1)));
}

TEST_CASE("a next probe begins anew") {
  Probed probed;
  (void)probed.look(false);
  CHECK_FALSE(probed.look(true));
  probed.suspicion.begin(true, probed.now);
  CHECK(probed.look(true));
  CHECK_FALSE(probed.look(true));
}

}  // namespace mpsshim::broker
