// SPDX-License-Identifier: Apache-2.0
// What every answer in JSON begins and ends with (docs/service.md, "JSON").
#pragma once

#include <string>

#include "broker/commands/json_writer.hpp"
#include "broker/commands/parsed_command.hpp"

namespace mpsshim::broker {

// An object with the command's schema and the version of all schemas, for more members.
[[nodiscard]] JsonWriter begin_document(const ParsedCommand& command);
// A line.
[[nodiscard]] std::string end_document(JsonWriter& json);

}  // namespace mpsshim::broker
