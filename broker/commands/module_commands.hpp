// SPDX-License-Identifier: Apache-2.0
// The commands that are named as in NVIDIA's version 3, which has modules with verbs: client, namespace, server, device, sm-partition. A part of the
// table (command_table.hpp), with the arguments that both parts have. Constant.
#pragma once

#include <vector>

#include "broker/commands/command_table.hpp"

namespace mpsshim::broker {

inline constexpr ArgumentSpec kServer{"PID", ArgumentKind::server};
inline constexpr ArgumentSpec kDevice{"DEVICE", ArgumentKind::device};
inline constexpr ArgumentSpec kSize{"SIZE", ArgumentKind::size};
inline constexpr ArgumentSpec kPercentage{"PERCENTAGE", ArgumentKind::percentage};
inline constexpr ArgumentSpec kPriority{"PRIORITY", ArgumentKind::client_priority};

[[nodiscard]] std::vector<CommandSpec> module_commands();

}  // namespace mpsshim::broker
