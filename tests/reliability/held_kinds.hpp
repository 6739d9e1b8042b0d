// SPDX-License-Identifier: Apache-2.0
// What idle bystanders hold, a class a kind: made by its constructor, worked on and compared by use(), which goes by the old handles alone.
// What is wrong is thrown (programs/driver.hpp).
#pragma once

#include <memory>
#include <string>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {

class Held {
 public:
  virtual ~Held() = default;
  virtual void use() = 0;
};

// nullptr for a kind that holds nothing of its own. `device` outlives it.
[[nodiscard]] std::unique_ptr<Held> hold(const std::string& kind, const Device& device);

}  // namespace mpsshim::test
