// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/function_names.hpp"

#include <memory>

#include "tests/support/catch.hpp"

namespace mpsshim::broker {

TEST_CASE("each name has one place, and ends there") {
  const auto memory = std::make_unique<FunctionNames>();
  FunctionNameTable names(*memory);
  const std::uint32_t add = names.add("add");
  const std::uint32_t store = names.add("store");
  CHECK(add != 0);
  CHECK(std::string(memory->text + add) == "add");
  CHECK(std::string(memory->text + store) == "store");
  CHECK(names.add("add") == add);
  CHECK(memory->text[0] == '\0');
}

TEST_CASE("names beyond the memory are unknown, those before stay") {
  const auto memory = std::make_unique<FunctionNames>();
  FunctionNameTable names(*memory);
  const std::uint32_t whole = names.add(std::string(kFunctionNamesBytes - 3, 'x'));  // the last byte but one is its end
  CHECK(whole == 1);
  CHECK(names.add("y") == 0);
  CHECK(names.add("") != 0);  // just its end fits
  CHECK(names.add("z") == 0);
  CHECK(std::string(memory->text + whole).size() == kFunctionNamesBytes - 3);
}

}  // namespace mpsshim::broker
