// SPDX-License-Identifier: Apache-2.0
// Where clients run: with the driver itself, as clients of NVIDIA's MPS, or as clients of mpsshim. Each Side is a service of its own, gone with
// the object, whatever state its clients have left it in.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/broker_fixture.hpp"

namespace mpsshim::test {

class Side {
 public:
  virtual ~Side() = default;
  // A conversing client (programs/conversation.hpp).
  [[nodiscard]] virtual Program start(const std::string& program) = 0;
  // The process whose end ends the GPU's context; -1: there is none besides the client itself.
  [[nodiscard]] virtual pid_t server() = 0;
  [[nodiscard]] virtual BrokerFixture* broker() { return nullptr; }
  [[nodiscard]] virtual std::string log() { return {}; }
};

enum class SideKind { native, mps, ours };
[[nodiscard]] std::unique_ptr<Side> make_side(SideKind kind);

}  // namespace mpsshim::test
