// SPDX-License-Identifier: Apache-2.0
#include "broker/commands/parsed_command.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/types.h>

#include "broker/printable.hpp"
#include "proto/memory_limit.hpp"
#include "proto/provision.hpp"
#include "proto/sm_partition.hpp"

namespace mpsshim::broker {

namespace {

struct Range {
  std::uint64_t least;
  std::uint64_t most;
};

std::optional<Range> range_of(ArgumentKind kind) {
  switch (kind) {
    case ArgumentKind::server:
    case ArgumentKind::client:
    case ArgumentKind::any_client:
    case ArgumentKind::process: return Range{1, static_cast<std::uint64_t>(std::numeric_limits<pid_t>::max())};
    case ArgumentKind::user: return Range{0, std::numeric_limits<uid_t>::max() - 1ull};  // the last one is nobody's
    case ArgumentKind::seconds: return Range{0, kMostSeconds};
    case ArgumentKind::count: return Range{1, kMostCount};
    case ArgumentKind::client_priority: return Range{0, proto::kMostClientPriorities - 1};
    case ArgumentKind::device:
    case ArgumentKind::size:
    case ArgumentKind::size_or_none:
    case ArgumentKind::percentage:
    case ArgumentKind::percentage_or_none:
    case ArgumentKind::interval:
    case ArgumentKind::sort_key:
    case ArgumentKind::group:
    case ArgumentKind::partition:
    case ArgumentKind::partition_name:
    case ArgumentKind::client_field:
    case ArgumentKind::server_field:
    case ArgumentKind::namespace_field:
    case ArgumentKind::format:
    case ArgumentKind::file:
    case ArgumentKind::literal: return std::nullopt;
  }
  return std::nullopt;
}

// "-1" is a number that is out of range, and no option.
bool is_option(std::string_view word) { return word.size() > 1 && word[0] == '-' && (word[1] < '0' || word[1] > '9'); }

bool is_number(std::string_view word) {
  if (word.starts_with('-')) word.remove_prefix(1);
  return !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
}

std::optional<AnswerFormat> format_named(std::string_view word) {
  if (word == "text" || word == "table") return AnswerFormat::text;  // the other one is NVIDIA's word
  if (word == "table,noheader") return AnswerFormat::text_without_header;
  if (word == "json") return AnswerFormat::json;
  if (word == "csv") return AnswerFormat::csv;
  if (word == "csv,noheader") return AnswerFormat::csv_without_header;
  return std::nullopt;
}

// What is wrong with `word` as such an argument; "": nothing.
std::string fault_of(const ArgumentSpec& argument, std::string_view word) {
  if (argument.kind == ArgumentKind::literal && word != argument.name) return fmt::format("{} is not {}", as_quoted(word), argument.name);
  if (argument.kind == ArgumentKind::format && !format_named(word)) {
    return fmt::format("{} is no format: text, json, csv or csv,noheader", as_quoted(word));
  }
  if (argument.kind == ArgumentKind::size && !proto::parse_memory_size(word)) {
    return fmt::format("{} is no size: an integer above 0 with M or G, such as 900M", as_quoted(word));
  }
  if (argument.kind == ArgumentKind::size_or_none && word != "none" && !proto::parse_memory_size(word)) {
    return fmt::format("{} is no size: an integer above 0 with M or G, such as 900M, or none", as_quoted(word));
  }
  if (argument.kind == ArgumentKind::group && !proto::parse_group(word)) {
    return fmt::format("{} is no name of a group: lowercase letters, digits and underscores, {} at most", as_quoted(word), proto::kMostGroupName);
  }
  if (argument.kind == ArgumentKind::partition_name && !proto::parse_group(word)) {
    return fmt::format("{} is no name of a partition: lowercase letters, digits and underscores, {} at most", as_quoted(word), proto::kMostGroupName);
  }
  if (argument.kind == ArgumentKind::partition && !proto::parse_partition(word) && !proto::parse_group(word)) {
    return fmt::format("{} is no partition: P with its number, such as P0000001, or its name", as_quoted(word));
  }
  if (argument.kind == ArgumentKind::percentage && !proto::parse_percentage(word)) {
    return fmt::format("{} is no percentage: a number above 0, to 100, such as 25 or 12.5", as_quoted(word));
  }
  if (argument.kind == ArgumentKind::percentage_or_none && word != "none" && !proto::parse_percentage(word)) {
    return fmt::format("{} is no percentage: a number above 0, to 100, such as 25 or 12.5, or none", as_quoted(word));
  }
  if (argument.kind == ArgumentKind::interval && !parse_interval(word)) {
    return fmt::format("{} is no interval: {} is 0.1 to 3600", as_quoted(word), argument.name);
  }
  if (argument.kind == ArgumentKind::sort_key && std::ranges::find(kSortKeys, word) == kSortKeys.end()) {
    return fmt::format("{} is nothing to sort by: {}", as_quoted(word), fmt::join(kSortKeys, ", "));
  }
  if (const auto fields = fields_of(argument.kind); !fields.empty() && std::ranges::find(fields, word) == fields.end()) {
    return fmt::format("{} is no field: {}", as_quoted(word), fmt::join(fields, ", "));
  }
  const auto range = range_of(argument.kind);
  if (!range) return "";
  if (!is_number(word)) return fmt::format("{} is no number, and {} is one", as_quoted(word), argument.name);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error == std::errc() && end == word.data() + word.size() && number >= range->least && number <= range->most) return "";
  return fmt::format("{} is out of range: {} is {} to {}", as_quoted(word), argument.name, range->least, range->most);
}

// "get, set"; "": it is no first word of commands of two.
std::string verbs_of(const std::string& module) {
  std::string verbs;
  for (const CommandSpec& command : command_table()) {
    if (!command.name.starts_with(module + ' ')) continue;
    verbs += (verbs.empty() ? "" : ", ") + std::string(command.name.substr(module.size() + 1));
  }
  return verbs;
}

// Commands of NVIDIA's later versions that cannot be obeyed here, and what there is in their place; "": the word is none of them.
std::string told_instead_of(std::string_view word) {
  constexpr std::string_view kAccounts = "memory is not accounted by control groups: what clients hold is in ps, users and namespace list";
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"memacct", kAccounts},
      {"feature", "there are no features to be switched: options of mpsbroker say what there is"},
      {"context-share", "contexts are not shared by a command: all clients of a server are served in one context"},
      {"shutdown_server", "a server is not shut down by a command: it ends when nobody needs it, and quit ends all"}};
  const auto* const found = std::ranges::find(kWords, word, [](const auto& each) { return each.first; });
  return found != std::end(kWords) ? fmt::format("{} is not obeyed: {}", found->first, found->second) : "";
}

class Reader {
 public:
  explicit Reader(const CommandSpec& spec) : spec_(spec) {}

  void read(const std::vector<std::string>& words) {
    std::size_t next_argument = 0;
    for (std::size_t i = 0; i < words.size() && fault_.empty(); ++i) {
      if (is_option(words[i])) {
        read_option(words, i);
      } else if (next_argument < spec_.arguments.size()) {
        keep(spec_.arguments[next_argument++], words[i], "");
      } else {
        fault_ = fmt::format("{} is one word too many", as_quoted(words[i]));
      }
    }
    if (fault_.empty()) look_for_missing();
  }
  [[nodiscard]] std::variant<ParsedCommand, std::string> result() {
    if (!fault_.empty()) return fmt::format("{}: usage: {}", fault_, usage_of(spec_));
    const AnswerFormat wanted = format();  // of the values, before they are moved
    return ParsedCommand(spec_, std::move(values_), wanted);
  }

 private:
  void read_option(const std::vector<std::string>& words, std::size_t& at) {
    const std::string& word = words[at];
    const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    const std::string name = word.substr(0, equals);
    const auto option = std::ranges::find(spec_.options, name, &OptionSpec::name);
    if (option == spec_.options.end()) {
      fault_ = fmt::format("{} has no option {}", spec_.name, as_quoted(name));
    } else if (values_.contains(option->name)) {
      fault_ = fmt::format("{} is given twice", option->name);
    } else if (!option->value && equals != std::string::npos) {
      fault_ = fmt::format("{} takes no value", option->name);
    } else if (!option->value) {
      values_[option->name] = "";
    } else if (equals == std::string::npos && (at + 1 == words.size() || is_option(words[at + 1]))) {
      fault_ = fmt::format("{} needs a value, {}", option->name, option->value->name);
    } else {
      keep(*option->value, equals != std::string::npos ? word.substr(equals + 1) : words[++at], option->name);
    }
  }
  // `option`: the one it is the value of, whose name it is kept by.
  void keep(const ArgumentSpec& argument, const std::string& word, std::string_view option) {
    fault_ = fault_of(argument, word);
    if (fault_.empty()) values_[option.empty() ? argument.name : option] = word;
  }
  void look_for_missing() {
    for (const OptionSpec& option : spec_.options) {
      if (option.is_required && !values_.contains(option.name)) fault_ = fmt::format("{} is missing", option.name);
      if (!option.excludes.empty() && values_.contains(option.name) && values_.contains(option.excludes)) {
        fault_ = fmt::format("{} and {} exclude each other", option.excludes, option.name);
      }
    }
    for (const ArgumentSpec& argument : spec_.arguments) {
      if (argument.is_required && !values_.contains(argument.name) && fault_.empty()) fault_ = fmt::format("{} is missing", argument.name);
    }
    if (!fault_.empty() || !values_.contains("--format")) return;
    if (values_.contains("--json") || values_.contains("--csv")) fault_ = "--format excludes --json and --csv";
    if (spec_.formats != Formats::table && values_.at("--format").starts_with("csv")) {
      fault_ = fmt::format("{} answers no table, and so no {}", spec_.name, values_.at("--format"));
    }
  }
  [[nodiscard]] AnswerFormat format() const {
    if (const auto named = values_.find("--format"); named != values_.end()) return *format_named(named->second);
    if (values_.contains("--json")) return AnswerFormat::json;
    return values_.contains("--csv") ? AnswerFormat::csv : AnswerFormat::text;
  }

  const CommandSpec& spec_;
  std::map<std::string_view, std::string> values_;
  std::string fault_;
};

}  // namespace

// By hand: what the library takes depends on the language that is set.
std::optional<std::chrono::milliseconds> parse_interval(std::string_view word) {
  constexpr std::size_t kMostDigits = 4;
  const std::size_t point = word.find('.');
  const std::string_view whole = word.substr(0, point);
  std::string part(point == std::string_view::npos ? "0" : word.substr(point + 1));
  const auto is_digits = [](std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos; };
  if (!is_digits(whole) || !is_digits(part) || whole.size() > kMostDigits || part.size() > 3) return std::nullopt;
  part.resize(3, '0');
  const std::chrono::milliseconds interval(1'000 * std::stoi(std::string(whole)) + std::stoi(part));
  if (interval < std::chrono::milliseconds(100) || interval > std::chrono::seconds(3'600)) return std::nullopt;
  return interval;
}

std::uint64_t ParsedCommand::number(std::string_view name) const {
  const std::string& word = text(name);
  std::uint64_t value = 0;
  std::from_chars(word.data(), word.data() + word.size(), value);
  return value;
}

std::variant<ParsedCommand, std::string> parse_command(const std::string& line) {
  std::istringstream text(line);
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  if (words.empty()) return "the command is empty: see help";
  const CommandSpec* const spec = leading_command(line);
  if (spec == nullptr) {
    const std::string verbs = verbs_of(words.front());
    if (!verbs.empty()) return fmt::format("{} needs a verb behind it: {}", words.front(), verbs);
    const std::string told = told_instead_of(words.front());
    return !told.empty() ? told : fmt::format("unknown command {}: see help", as_quoted(words.front()));
  }
  words.erase(words.begin(), words.begin() + (spec->name.find(' ') == std::string_view::npos ? 1 : 2));
  Reader reader(*spec);
  reader.read(words);
  return reader.result();
}

std::string as_quoted(std::string_view word) {
  constexpr std::size_t kLongest = 60;
  return fmt::format("\"{}{}\"", printable(word.substr(0, kLongest)), word.size() > kLongest ? "..." : "");
}

}  // namespace mpsshim::broker
