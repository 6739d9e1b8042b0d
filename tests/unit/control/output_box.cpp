// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/output_box.hpp"

#include <string>
#include <utility>

#include "tests/support/catch.hpp"

using namespace mpsshim::broker::control;
using mpsshim::proto::OutputTaken;

namespace {

// All of it, by stream; and what was dropped.
struct Taken {
  std::string output;
  std::string errors;
  std::uint64_t dropped_bytes = 0;
};

Taken take_all(OutputBox& box) {
  Taken taken;
  for (;;) {
    OutputTaken message;
    box.take(message);
    taken.dropped_bytes += message.dropped_bytes;
    if (message.stream == 0) return taken;
    (message.stream == OutputBox::kStandardOutput ? taken.output : taken.errors).append(message.text, message.size_bytes);
  }
}

}  // namespace

TEST_CASE("text is taken in order, in as many messages as it needs") {
  OutputBox box;
  CHECK(box.is_empty());
  const std::string long_text(3 * sizeof(OutputTaken::text) + 5, 'a');
  box.add(OutputBox::kStandardOutput, "first\n");
  box.add(OutputBox::kStandardError, "error\n");
  box.add(OutputBox::kStandardOutput, long_text);
  box.add(OutputBox::kStandardOutput, "");
  CHECK_FALSE(box.is_empty());
  const Taken taken = take_all(box);
  CHECK(taken.output == "first\n" + long_text);
  CHECK(taken.errors == "error\n");
  CHECK(taken.dropped_bytes == 0);
  CHECK(box.is_empty());
}

TEST_CASE("of too much text the newest stays, and how much went is told once") {
  OutputBox box;
  box.add(OutputBox::kStandardOutput, "old");
  box.add(OutputBox::kStandardOutput, std::string(OutputBox::kMaxBytes - 1, 'b'));
  box.add(OutputBox::kStandardError, "new");
  const Taken taken = take_all(box);
  CHECK(taken.dropped_bytes == 5);
  CHECK(taken.output.size() == OutputBox::kMaxBytes - 3);
  CHECK(taken.errors == "new");
  CHECK(take_all(box).dropped_bytes == 0);
}
