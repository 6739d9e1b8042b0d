// SPDX-License-Identifier: Apache-2.0
// A line of mpsctl as its command and arguments, read by the table. What cannot be is told here, the same way for every command: what is wrong, with
// the word as it came, and how the command is written. So who obeys a command has words of the right form and number, and asks only whether what they
// name is there. Any bytes may come; nothing is executed here.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "broker/commands/command_table.hpp"
#include "broker/commands/table.hpp"

namespace mpsshim::broker {

inline constexpr std::uint64_t kMostSeconds = 1'000'000;
inline constexpr std::uint64_t kMostCount = 1'000'000'000;

// Seconds between two looks, 0.1 to 3600, digits with a point among them; nothing: it is none.
[[nodiscard]] std::optional<std::chrono::milliseconds> parse_interval(std::string_view word);

class ParsedCommand {
 public:
  ParsedCommand(const CommandSpec& spec, std::map<std::string_view, std::string> values, AnswerFormat format)
      : spec_(&spec), values_(std::move(values)), format_(format) {}

  [[nodiscard]] const CommandSpec& spec() const { return *spec_; }
  [[nodiscard]] std::string_view name() const { return spec_->name; }
  [[nodiscard]] AnswerFormat format() const { return format_; }
  // `name`: an option's ("-p") or an argument's ("PID").
  [[nodiscard]] bool has(std::string_view name) const { return values_.contains(name); }
  [[nodiscard]] const std::string& text(std::string_view name) const { return values_.at(name); }  // of one that is there
  [[nodiscard]] std::uint64_t number(std::string_view name) const;                                 // of a kind that is a number

 private:
  const CommandSpec* spec_;
  std::map<std::string_view, std::string> values_;
  AnswerFormat format_;
};

// Or what is wrong with it, without a line's end.
[[nodiscard]] std::variant<ParsedCommand, std::string> parse_command(const std::string& line);

// A word of somebody's in a message: printable, in quotes, and not too long.
[[nodiscard]] std::string as_quoted(std::string_view word);

}  // namespace mpsshim::broker
