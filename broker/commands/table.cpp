// SPDX-License-Identifier: Apache-2.0
#include "broker/commands/table.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "broker/printable.hpp"

namespace mpsshim::broker {

namespace {

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;  // clang 14 makes none by itself

std::string plain(const Cell::Value& value, std::string_view nothing) {
  const auto text = Overloaded{[&](std::nullptr_t) { return std::string(nothing); }, [](const std::string& words) { return printable(words); },
                               [](const std::vector<std::uint64_t>& numbers) { return fmt::format("{}", fmt::join(numbers, " ")); },
                               [](const Decimal& number) { return number.digits; }, [](auto number) { return std::to_string(number); }};
  return std::visit(text, value);
}

std::string padded(const std::string& text, const Column& column) {
  if (column.width == 0) return text;
  return fmt::format("{:<{}}{}", text, column.width, text.size() < static_cast<std::size_t>(column.width) ? "" : " ");
}

std::string field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos && !text.starts_with(' ') && !text.ends_with(' ')) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

}  // namespace

std::string columns_of(const Table& table, bool has_header) {
  std::string text;
  for (const Column& column : table.columns) {
    if (has_header && *column.heading != '\0') text += padded(column.heading, column);
  }
  if (has_header) text += '\n';
  for (const auto& row : table.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const Column& column = table.columns[i];
      if (*column.heading != '\0') text += padded(row[i].shown.value_or(plain(row[i].value, "-")), column);
    }
    text += '\n';
  }
  return text;
}

std::string comma_separated(const Table& table, bool has_header) {
  std::string text;
  const auto end = [&text] { text.back() = '\n'; };  // where the last comma was
  if (has_header) {
    for (const Column& column : table.columns) text += field(column.key) + ',';
    end();
  }
  for (const auto& row : table.rows) {
    for (const Cell& cell : row) text += field(plain(cell.value, "")) + ',';
    end();
  }
  return text;
}

void write_rows(JsonWriter& json, const Table& table) {
  const auto put = Overloaded{[&](std::nullptr_t) { json.null(); },
                              [&](const std::vector<std::uint64_t>& numbers) {
                                json.begin_array();
                                for (const std::uint64_t number : numbers) json.value(number);
                                json.end_array();
                              },
                              [&](const std::string& text) { json.value(text); }, [&](const Decimal& number) { json.number(number.digits); },
                              [&](auto number) { json.value(number); }};
  json.begin_array();
  for (const auto& row : table.rows) {
    json.begin_object();
    for (std::size_t i = 0; i < row.size(); ++i) {
      json.key(table.columns[i].key);
      std::visit(put, row[i].value);
    }
    json.end_object();
  }
  json.end_array();
}

}  // namespace mpsshim::broker
