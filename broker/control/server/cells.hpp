// SPDX-License-Identifier: Apache-2.0
// Cells of answers (broker/commands/table.hpp), as the questions of mpsctl have them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <sys/types.h>

#include "broker/commands/table.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::broker::control {

[[nodiscard]] inline Cell positive(pid_t pid) { return pid > 0 ? Cell{std::int64_t{pid}} : Cell{nullptr}; }
[[nodiscard]] inline Cell number(std::uint64_t value) { return {value}; }
[[nodiscard]] inline Cell limit(std::uint64_t value) { return value != 0 ? Cell{value} : Cell{nullptr}; }  // 0: none
[[nodiscard]] inline Cell mib(std::uint64_t bytes) { return {bytes, std::to_string(bytes >> 20)}; }
[[nodiscard]] inline Cell known(const std::string& text) { return text.empty() ? Cell{nullptr} : Cell{text}; }

// "GPU-" and the UUID as CUDA has it.
[[nodiscard]] std::string uuid_text(const proto::DeviceFacts& device);
// Shown is "GPU-cb1213a3-d6a4-be7f": enough of the UUID to tell devices apart, as NVIDIA's ps prints it. `facts`: nullptr before a server was ready.
[[nodiscard]] Cell uuid(const proto::DriverFacts* facts, unsigned device);
// "1G", "900M": as the manual writes limits, which has no word for none.
[[nodiscard]] std::string size_text(std::uint64_t bytes);
// Of a limit: shown as size_text() says it, nothing where there is none.
[[nodiscard]] inline Cell size_limit(std::uint64_t bytes) { return {limit(bytes).value, size_text(bytes)}; }
// "25.0", in hundredths of a percent.
[[nodiscard]] Cell percent(std::uint32_t hundredths);
// "7s", "4:05", "1:00:07", "12d 03:00": two or three figures of it.
[[nodiscard]] std::string age_text(std::chrono::milliseconds age);

}  // namespace mpsshim::broker::control
