// SPDX-License-Identifier: Apache-2.0
// An answer that is a list of rows, and its three forms: columns for a person, comma-separated values, objects of JSON. All come from the same cells,
// so none can say something that another does not know. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "broker/commands/json_writer.hpp"

namespace mpsshim::broker {

enum class AnswerFormat { text, text_without_header, csv, csv_without_header, json };

// A number by its digits: "12.5".
struct Decimal {
  std::string digits;
};

struct Cell {
  using Value = std::variant<std::nullptr_t, std::int64_t, std::uint64_t, std::string, std::vector<std::uint64_t>, Decimal>;
  Value value;
  std::optional<std::string> shown{};  // to a person, in place of the value
};

struct Column {
  std::string key;           // JSON's, and the heading of comma-separated values
  const char* heading = "";  // for a person; "": that one does not see it
  int width = 0;             // at least so many characters; 0: it is the last one
};

struct Table {
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;  // each with a cell for each column
};

// For a person; "-" where there is no value.
[[nodiscard]] std::string columns_of(const Table& table, bool has_header = true);
// RFC 4180, with "\n" at the end of lines. Nothing where there is no value; numbers of a list are separated by blanks.
[[nodiscard]] std::string comma_separated(const Table& table, bool has_header);
// An array of objects. The place for it is open.
void write_rows(JsonWriter& json, const Table& table);

}  // namespace mpsshim::broker
