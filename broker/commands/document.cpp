// SPDX-License-Identifier: Apache-2.0
#include "broker/commands/document.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace mpsshim::broker {

namespace {

constexpr unsigned kSchemaVersion = 1;  // it grows when a key goes away or means something else

}  // namespace

JsonWriter begin_document(const ParsedCommand& command) {
  JsonWriter json;
  std::string name(command.name());
  std::ranges::replace(name, ' ', '_');
  json.begin_object().member("schema", fmt::format("mpsshim.{}", name)).member("version", kSchemaVersion);
  return json;
}

std::string end_document(JsonWriter& json) { return json.end_object().text() + '\n'; }

}  // namespace mpsshim::broker
