// SPDX-License-Identifier: Apache-2.0
// A client with two functions, and what became of its launches: in which graphs they went out, and with which arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {

struct ChainFixture {
  WireExecutor executor;
  WireClient client{executor};
  FakeFunction function{"f", {8}};
  FakeFunction second{"g", {4, 8, 1}};
  proto::FunctionId id = client.add_function(function);
  proto::FunctionId second_id = client.add_function(second);

  std::vector<FakeCall> launches() { return executor.fake.calls(FakeCall::launch); }
  // Kernels in each graph launch, in order; 0 stands for a plain launch.
  std::vector<std::size_t> shape() {
    std::vector<std::size_t> shape;
    unsigned last = 0;
    for (const FakeCall& call : launches()) {
      if (call.chain == 0)
        shape.push_back(0);
      else if (call.chain != last)
        shape.push_back(call.chain_length);
      last = call.chain;
    }
    return shape;
  }
  void check_arguments(std::uint64_t count) {
    const auto calls = launches();
    REQUIRE(calls.size() == count);
    for (std::uint64_t i = 0; i < count; ++i) CHECK(std::memcmp(calls[i].parameters.data(), &i, 8) == 0);
  }
};

}  // namespace mpsshim::test
