// SPDX-License-Identifier: Apache-2.0
// The commands of mpsctl: what each takes, answers and does, for a person and for programs. The one place that knows: the control process reads lines
// by it (parsed_command.hpp), and help, the manual page and the completion of shells are made of it. Names and arguments are those of
// nvidia-cuda-mps-control where that has them (docs/mps-parity.md).
// Constant.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mpsshim::broker {

enum class ArgumentKind {
  server,      // a number of get_server_list, or any pid that the server had
  client,      // pid of a server's client
  any_client,  // the same, of any server
  process,     // any pid
  user,        // uid
  device,      // index or UUID, also its beginning
  size,        // of memory
  size_or_none,
  percentage,
  percentage_or_none,
  client_priority,
  seconds,
  interval,  // seconds, with parts of one
  count,
  sort_key,   // of top
  group,      // name of a namespace
  partition,  // a static partition's number or name
  partition_name,
  client_field,  // words of fields_of()
  server_field,
  namespace_field,
  format,   // csv, csv,noheader or json
  file,     // path of one
  literal,  // the word itself
};
[[nodiscard]] const char* kind_name(ArgumentKind kind);

struct ArgumentSpec {
  std::string_view name;  // "PID"; of a literal the word
  ArgumentKind kind;
  bool is_required = true;
};

// What `top` sorts by: the words of ArgumentKind::sort_key.
inline constexpr std::array<std::string_view, 8> kSortKeys{"gpu", "launches", "wait", "in_flight", "memory", "age", "pid", "user"};

// What `client get`, `server get` and `namespace get` tell one of; of any other kind none.
[[nodiscard]] std::span<const std::string_view> fields_of(ArgumentKind kind);

struct OptionSpec {
  std::string_view name;                // "-p"
  std::optional<ArgumentSpec> value{};  // what follows it
  bool is_required = false;
  std::string_view excludes{};  // an option that cannot be given with it
};

// What it can answer in besides text.
enum class Formats { text, json, table };  // table: comma-separated values, too

struct CommandSpec {
  std::string_view name;  // "ps", "client set": one or two words
  std::vector<OptionSpec> options;
  std::vector<ArgumentSpec> arguments;
  Formats formats = Formats::text;
  bool is_action = false;  // it changes something: always logged
  std::string_view help;
  bool is_local = false;  // mpsctl obeys it itself: no broker does, and it may be that none is there
};

[[nodiscard]] std::span<const CommandSpec> command_table();            // in the order of help
[[nodiscard]] const CommandSpec* find_command(std::string_view name);  // nullptr: there is none
// The one that a line of words begins with, of two words where there is such.
[[nodiscard]] const CommandSpec* leading_command(std::string_view line);

// "ps [-l] [-p PID] [--csv | --json]"
[[nodiscard]] std::string usage_of(const CommandSpec& command);
// All of them with what they do, in lines of at most `width` characters.
[[nodiscard]] std::string commands_help(std::size_t width);
// `text` in lines of at most `width` characters, each with `indent` blanks before it.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t indent, std::size_t width);

}  // namespace mpsshim::broker
