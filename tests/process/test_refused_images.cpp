// SPDX-License-Identifier: Apache-2.0
// Images that the CPU driver cannot run: the program is told why, a program that looks at errors goes on, and one that does not gets no result
// that was computed without the kernel.
#include <string>
#include <vector>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("a refused module is told to the program once, which goes on with another one") {
  if (on_gpu()) MPSSHIM_SKIP("a GPU runs it");
  const BrokerFixture broker;
  const Outcome outcome = broker.run("refused_client", {"module", "module", "good_library", "launch", "copy", "sync"});
  INFO(outcome.explain() << broker.log());
  REQUIRE(outcome.ok());
  CHECK(outcome.output == "module=218 module=218 good_library=0 launch=0 copy=0 sync=0 first=right\n");
  CHECK(count_of(outcome.errors, "textures are not supported by the CPU driver ('tex.1d.v4.f32.s32' in 'look_up')") == 1);
  // The broker's line names the session, its process and its program.
  CHECK(broker.log().find("refused_client): an image is refused (CUDA_ERROR_INVALID_PTX (218))") != std::string::npos);
}

TEST_CASE("after a refused library no call gives anything out") {
  if (on_gpu()) MPSSHIM_SKIP("a GPU runs it");
  const BrokerFixture broker;
  const Outcome outcome =
      broker.run("refused_client", {"launch", "library", "launch", "copy", "sync", "query", "allocate", "good_library", "library"});
  INFO(outcome.explain());
  REQUIRE(outcome.ok());
  CHECK(outcome.output == "launch=0 library=218 launch=218 copy=218 sync=218 query=218 allocate=218 good_library=218 library=218 first=none\n");
  CHECK(count_of(outcome.errors, "textures are not supported by the CPU driver") == 1);
  CHECK(count_of(outcome.errors, "every later CUDA call gives error 218") == 1);
  // Others of the same broker do not notice.
  const Outcome other = broker.run("refused_client", {"launch", "copy"});
  CHECK(other.output == "launch=0 copy=0 first=right\n");
  CHECK(other.errors.empty());
}

TEST_CASE("a library without PTX is refused with what it holds") {
  const BrokerFixture broker;
  const Outcome outcome = broker.run("refused_client", {"code_only", "launch", "copy"});
  INFO(outcome.explain());
  REQUIRE(outcome.ok());
  if (on_gpu()) {  // as natively: an error of that call alone, and no words
    CHECK(outcome.output == "code_only=209 launch=0 copy=0 first=right\n");
    CHECK(outcome.errors.empty());
  } else {
    CHECK(outcome.output == "code_only=209 launch=209 copy=209 first=none\n");
    CHECK(count_of(outcome.errors, "the image holds machine code for sm_10, and no code for this device") == 1);
  }
}
