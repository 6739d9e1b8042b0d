// SPDX-License-Identifier: Apache-2.0
// Faults of work that is no kernel, on a driver that makes such: whoever is busy with kernels meanwhile is not taken to be guilty of them.
#include <chrono>
#include <string>
#include <thread>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

BrokerOptions with_faulting_fills() {
  BrokerOptions options;
  options.driver = built_library("libfaulty_driver_faulting_fills.so");
  return options;
}

struct Work {
  const char* before;  // while nobody is at work, for graphs are not made beside a kernel without end
  const char* fault;
};
constexpr Work kFills[] = {{"own", "fill dead0004"}, {"fill_graph dead0004", "launch_graph"}};

// What ends in the last milliseconds before a fault counts as busy (docs/recovery.md, "Guilt").
constexpr std::chrono::milliseconds kIdleFirst{100};

}  // namespace

TEST_CASE("a fill that faults is its client's fault, if nobody else is at work") {
  for (const Work& work : kFills) {
    const BrokerFixture broker(with_faulting_fills());
    Client bystander(broker), guilty(broker);
    REQUIRE(bystander.ask("hold") == "ok");
    REQUIRE(guilty.ask(work.before) == "ok");
    std::this_thread::sleep_for(kIdleFirst);
    const std::string answer = guilty.ask(work.fault);
    INFO(work.fault << ": " << answer << "\n" << broker.log());
    REQUIRE(answer.rfind("700 CUDA_ERROR_ILLEGAL_ADDRESS", 0) == 0);
    REQUIRE(bystander.ask("check") == "ok");
    REQUIRE(bystander.ask("use") == "ok");
  }
}

TEST_CASE("a fill that faults beside a kernel without end: nobody is shown guilty, the kernel's client least of all") {
  for (const Work& work : kFills) {
    const BrokerFixture broker(with_faulting_fills());
    Client bystander(broker), guilty(broker);
    REQUIRE(guilty.ask(work.before) == "ok");
    REQUIRE(bystander.ask("spin") == "ok");
    const std::string answer = guilty.ask(work.fault);
    const std::string state = bystander.ask("probe");
    INFO(work.fault << ": " << answer << "\nbystander: " << state << "\n" << broker.log());
    REQUIRE(is_mps_error(answer));
    REQUIRE(state == "sync=807 alloc=807 launch=807 copy=807 stream=807");
    REQUIRE(broker.log().find("none of 2 clients with work under way is shown guilty") != std::string::npos);
    REQUIRE(broker.log().find("is guilty") == std::string::npos);
  }
}
