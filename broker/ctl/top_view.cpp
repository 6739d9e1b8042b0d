// SPDX-License-Identifier: Apache-2.0
#include "broker/ctl/top_view.hpp"

#include <chrono>
#include <map>

#include <fmt/format.h>
#include <pwd.h>

#include "broker/control/server/cells.hpp"

namespace mpsshim::broker::ctl {

namespace {

constexpr std::size_t kLongestName = 10;

// Asked once each: it may be asked of another machine.
const std::string& user_name(std::uint64_t uid) {
  static std::map<std::uint64_t, std::string> names;
  const auto [entry, is_new] = names.try_emplace(uid);
  if (is_new) {
    const passwd* const found = getpwuid(static_cast<uid_t>(uid));
    entry->second = found != nullptr ? std::string(found->pw_name).substr(0, kLongestName) : std::to_string(uid);
  }
  return entry->second;
}

std::string mib_text(std::uint64_t bytes) { return fmt::format("{}M", bytes >> 20); }

std::string line_of(const ClientRow& row) {
  const auto share = [](std::optional<double> part) { return part ? fmt::format("{:.1f}", 100 * *part) : std::string("-"); };
  const auto rate = [](std::optional<double> count) { return count ? fmt::format("{:.0f}", *count) : std::string("-"); };
  const auto time = row.gpu_time_us ? fmt::format("{:.1f}s", static_cast<double>(*row.gpu_time_us) / 1e6) : std::string("-");
  const auto age = control::age_text(std::chrono::milliseconds(row.age_ms));
  const auto known = [](const std::string& text) { return text.empty() ? std::string("-") : text; };
  return fmt::format("{:>8} {:<10} {:>8} {:>3} {:<11} {:>9} {:>5} {:>4} {:>9} {:>6} {:>9} {:>6} {:>7} {:>9} {:>10}  {}",
                     row.pid > 0 ? std::to_string(row.pid) : "-", user_name(row.uid), known(row.server), row.device, row.state, age,
                     known(row.percentage), known(row.priority), mib_text(row.memory_bytes), share(row.gpu_share), rate(row.launches_per_second),
                     share(row.wait_share), rate(row.waits_per_second), row.in_flight, time, row.command);
}

}  // namespace

TopView view_of(const ClientRows& rows, std::string_view directory, std::string_view time_of_day, std::string_view key) {
  TopView view;
  std::uint64_t memory_bytes = 0;
  double launches = 0;
  for (const auto& [session, row] : rows) {
    memory_bytes += row.memory_bytes;
    launches += row.launches_per_second.value_or(0);
  }
  view.title = fmt::format("mpsshim {}  {} client{}  {} of device memory  {:.0f} launches/s  by {}  {}", time_of_day, rows.size(),
                           rows.size() == 1 ? "" : "s", mib_text(memory_bytes), launches, key, directory);
  view.headings =
      fmt::format("{:>8} {:<10} {:>8} {:>3} {:<11} {:>9} {:>5} {:>4} {:>9} {:>6} {:>9} {:>6} {:>7} {:>9} {:>10}  {}", "PID", "USER", "SERVER", "DEV",
                  "STATE", "AGE", "SM%", "PRIO", "MEMORY", "GPU%", "LAUNCH/S", "WAIT%", "WAIT/S", "IN-FLIGHT", "GPU-TIME", "COMMAND");
  for (const ClientRow* row : sorted(rows, key)) view.clients.push_back(line_of(*row));
  return view;
}

Table table_of(const ClientRows& rows, std::string_view key) {
  Table table{{{"pid"},
               {"session"},
               {"server"},
               {"device"},
               {"uid"},
               {"state"},
               {"age_ms"},
               {"active_thread_percentage"},
               {"client_priority"},
               {"memory_bytes"},
               {"gpu_share"},
               {"launches_per_second"},
               {"wait_share"},
               {"waits_per_second"},
               {"in_flight"},
               {"gpu_time_us"},
               {"command"}},
              {}};
  const auto digits = [](const std::string& text) { return text.empty() ? Cell{nullptr} : Cell{Decimal{text}}; };
  const auto rate = [](std::optional<double> value) { return value ? Cell{Decimal{fmt::format("{:.4f}", *value)}} : Cell{nullptr}; };
  for (const ClientRow* row : sorted(rows, key)) {
    table.rows.push_back({row->pid > 0 ? Cell{row->pid} : Cell{nullptr},
                          {row->session},
                          digits(row->server),
                          digits(row->device),
                          {row->uid},
                          {row->state},
                          {row->age_ms},
                          digits(row->percentage),
                          digits(row->priority),
                          {row->memory_bytes},
                          rate(row->gpu_share),
                          rate(row->launches_per_second),
                          rate(row->wait_share),
                          rate(row->waits_per_second),
                          {row->in_flight},
                          row->gpu_time_us ? Cell{*row->gpu_time_us} : Cell{nullptr},
                          {row->command}});
  }
  return table;
}

std::string_view cut_to(std::string_view text, std::size_t characters) {
  std::size_t end = 0;
  for (std::size_t seen = 0; end < text.size(); ++end) {
    const bool begins_one = (static_cast<unsigned char>(text[end]) & 0xc0) != 0x80;
    if (begins_one && seen++ == characters) break;
  }
  return text.substr(0, end);
}

}  // namespace mpsshim::broker::ctl
