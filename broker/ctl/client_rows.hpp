// SPDX-License-Identifier: Apache-2.0
// What `ps --csv` answers, as rows again, and what two answers say together: how much of the time between them a client had work, and its launches a
// second. A client's own age is the clock, so it does not matter how long an answer was under way. Pure functions; what a broker of another version
// answers may lack columns, or have more.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mpsshim::broker::ctl {

// RFC 4180, as broker/commands/table.cpp writes it. Nothing: it is not well-formed.
[[nodiscard]] std::optional<std::vector<std::vector<std::string>>> read_comma_separated(std::string_view text);

struct ClientRow {
  std::uint64_t session = 0;
  std::int64_t pid = 0;  // 0: of a namespace that is not seen
  std::string server, device, state, command;
  std::string percentage, priority;  // "25.0", "1"; "": not known
  std::uint64_t uid = 0, age_ms = 0, memory_bytes = 0, in_flight = 0;
  std::optional<std::uint64_t> gpu_time_us, launches, waits, wait_time_us;  // nothing: they are not counted
  // Since the row before; of a client without one, since it began.
  std::optional<double> gpu_share, launches_per_second, waits_per_second, wait_share;
};

using ClientRows = std::map<std::uint64_t, ClientRow>;  // by session
// Nothing: it is no answer of ps.
[[nodiscard]] std::optional<ClientRows> read_clients(std::string_view text);
void compare(ClientRows& now, const ClientRows& before);

// `key`: one of kSortKeys. The most first, but for pid and user; of what is alike the older session.
[[nodiscard]] std::vector<const ClientRow*> sorted(const ClientRows& rows, std::string_view key);

}  // namespace mpsshim::broker::ctl
