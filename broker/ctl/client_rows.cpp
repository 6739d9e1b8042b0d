// SPDX-License-Identifier: Apache-2.0
#include "broker/ctl/client_rows.hpp"

#include <algorithm>
#include <charconv>

namespace mpsshim::broker::ctl {

namespace {

using Fields = std::vector<std::string>;

// Takes one field and what ends it (a comma, or a line's end) from `text`. False: it is not well-formed.
bool take_field(std::string_view& text, std::string& field, bool& ends_line) {
  field.clear();
  if (text.starts_with('"')) {
    for (text.remove_prefix(1);; text.remove_prefix(1)) {
      const std::size_t quote = text.find('"');
      if (quote == std::string_view::npos) return false;
      field += text.substr(0, quote);
      text.remove_prefix(quote + 1);
      if (!text.starts_with('"')) break;
      field += '"';
    }
  } else {
    const std::size_t end = text.find_first_of(",\n");
    if (end == std::string_view::npos) return false;
    field = text.substr(0, end);
    text.remove_prefix(end);
  }
  if (!text.starts_with(',') && !text.starts_with('\n')) return false;
  ends_line = text.front() == '\n';
  text.remove_prefix(1);
  return true;
}

template <typename Number>
Number number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : Number{};
}

std::optional<std::uint64_t> counted(std::string_view text) { return text.empty() ? std::nullopt : std::optional(number_in<std::uint64_t>(text)); }

ClientRow row_of(const Fields& keys, const Fields& values) {
  const auto value = [&](std::string_view key) -> std::string_view {
    const auto found = std::ranges::find(keys, key);
    return found == keys.end() ? std::string_view() : std::string_view(values[static_cast<std::size_t>(found - keys.begin())]);
  };
  ClientRow row;
  row.session = number_in<std::uint64_t>(value("session"));
  row.pid = number_in<std::int64_t>(value("pid"));
  row.server = value("server");
  row.device = value("device");
  row.state = value("state");
  row.command = value("command");
  row.percentage = value("active_thread_percentage");
  row.priority = value("client_priority");
  row.uid = number_in<std::uint64_t>(value("uid"));
  row.age_ms = number_in<std::uint64_t>(value("age_ms"));
  row.memory_bytes = number_in<std::uint64_t>(value("memory_bytes"));
  row.in_flight = number_in<std::uint64_t>(value("in_flight"));
  row.gpu_time_us = counted(value("gpu_time_us"));
  row.launches = counted(value("launches"));
  row.waits = counted(value("waits"));
  row.wait_time_us = counted(value("wait_time_us"));
  return row;
}

}  // namespace

std::optional<std::vector<Fields>> read_comma_separated(std::string_view text) {
  std::vector<Fields> lines;
  bool ends_line = true;
  std::string field;
  while (!text.empty()) {
    if (ends_line) lines.emplace_back();
    if (!take_field(text, field, ends_line)) return std::nullopt;
    lines.back().push_back(field);
  }
  return ends_line ? std::optional(std::move(lines)) : std::nullopt;
}

std::optional<ClientRows> read_clients(std::string_view text) {
  const auto lines = read_comma_separated(text);
  if (!lines || lines->empty()) return std::nullopt;
  const Fields& keys = lines->front();
  if (std::ranges::find(keys, "session") == keys.end() || std::ranges::find(keys, "age_ms") == keys.end()) return std::nullopt;
  ClientRows rows;
  for (std::size_t i = 1; i < lines->size(); ++i) {
    if ((*lines)[i].size() != keys.size()) return std::nullopt;
    const ClientRow row = row_of(keys, (*lines)[i]);
    rows[row.session] = row;
  }
  return rows;
}

void compare(ClientRows& now, const ClientRows& before) {
  static const ClientRow nothing;
  for (auto& [session, row] : now) {
    const auto found = before.find(session);
    // Counts go down where another broker has the same numbers.
    const bool goes_on = found != before.end() && found->second.age_ms <= row.age_ms && found->second.gpu_time_us <= row.gpu_time_us &&
                         found->second.launches <= row.launches && found->second.waits <= row.waits && found->second.wait_time_us <= row.wait_time_us;
    const ClientRow& since = goes_on ? found->second : nothing;
    const double passed_ms = static_cast<double>(row.age_ms - since.age_ms);
    if (passed_ms <= 0) continue;
    const auto grown = [&of = row, &since, passed_ms](std::optional<std::uint64_t> ClientRow::*count) -> std::optional<double> {  // in a ms
      if (!(of.*count)) return std::nullopt;
      return static_cast<double>(*(of.*count) - (since.*count).value_or(0)) / passed_ms;
    };
    const auto share = [](std::optional<double> us) { return us ? std::optional(std::min(*us / 1e3, 1.0)) : std::nullopt; };
    const auto rate = [](std::optional<double> count) { return count ? std::optional(*count * 1e3) : std::nullopt; };
    row.gpu_share = share(grown(&ClientRow::gpu_time_us));
    row.wait_share = share(grown(&ClientRow::wait_time_us));
    row.launches_per_second = rate(grown(&ClientRow::launches));
    row.waits_per_second = rate(grown(&ClientRow::waits));
  }
}

std::vector<const ClientRow*> sorted(const ClientRows& rows, std::string_view key) {
  std::vector<const ClientRow*> order;
  for (const auto& [session, row] : rows) order.push_back(&row);
  const auto by = [&](auto value) { std::ranges::stable_sort(order, std::ranges::greater(), value); };
  const auto from_least = [&](auto value) { std::ranges::stable_sort(order, std::ranges::less(), value); };
  if (key == "gpu") by([](const ClientRow* row) { return row->gpu_share.value_or(-1); });
  if (key == "launches") by([](const ClientRow* row) { return row->launches_per_second.value_or(-1); });
  if (key == "wait") by([](const ClientRow* row) { return row->wait_share.value_or(-1); });
  if (key == "in_flight") by([](const ClientRow* row) { return row->in_flight; });
  if (key == "memory") by([](const ClientRow* row) { return row->memory_bytes; });
  if (key == "age") by([](const ClientRow* row) { return row->age_ms; });
  if (key == "pid") from_least([](const ClientRow* row) { return row->pid; });
  if (key == "user") from_least([](const ClientRow* row) { return row->uid; });
  return order;
}

}  // namespace mpsshim::broker::ctl
