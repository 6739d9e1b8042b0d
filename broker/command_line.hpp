// SPDX-License-Identifier: Apache-2.0
// What a program takes on its command line: the one place that sees CLI11, which is slow to compile and used once in a process's
// life. Names are CLI11's: "-d,--daemon", "--driver". What is bound must outlive parse(). One thread.
//
//   CommandLine line("mpsctl: ...");
//   line.option("--pipe-dir", pipe_dir, "Directory of the sockets");
//   if (const auto status = line.parse(argc, argv)) return *status;
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace CLI {
class App;
}

#include "broker/commands/json_writer.hpp"

namespace mpsshim::broker {

class CommandLine {
 public:
  struct Range {
    unsigned least;
    unsigned most;
  };
  // What an option is read into.
  using Value = std::variant<std::string*, unsigned*, std::uint64_t*, int*, double*>;

  explicit CommandLine(const std::string& description);  // "PROGRAM: what it is"; and --help, and --version
  ~CommandLine();

  // `excludes`: the name of a flag that cannot be given with it.
  void flag(const std::string& names, bool& value, const std::string& help, const std::string& excludes = "");
  // Its help shows what stands in `value` now, unless that is an empty text.
  void option(const std::string& name, Value value, const std::string& help, std::optional<Range> range = std::nullopt);
  // In a group of the help of its own.
  void test_option(const std::string& name, Value value, const std::string& help);
  // Not in the help: for the program itself, when it starts another of its kind.
  void hidden_flag(const std::string& name, bool& value);
  void hidden_option(const std::string& name, Value value);
  // "-multiuser-server", as NVIDIA has it, is the flag with two dashes.
  void single_dash(const std::string& name) { single_dash_.push_back(name); }
  // --describe (not in the help) prints what the help has as a document of JSON, for manual pages and the completion of shells
  // (scripts/lib/operators_pages.py). `more` adds members to it.
  void describe_also(std::function<void(JsonWriter&)> more) { describe_more_ = std::move(more); }
  // All that follows the options belongs to remaining(), described by `footer` at the end of the help.
  void take_remaining(const std::string& footer);

  // nullopt: go on. Otherwise the exit status: help or the version was asked for and printed, or what is wrong was said.
  [[nodiscard]] std::optional<int> parse(int argc, char** argv);
  [[nodiscard]] std::vector<std::string> remaining() const;

 private:
  void print_description() const;

  std::unique_ptr<CLI::App> app_;
  const std::string description_;
  std::vector<std::string> single_dash_;
  std::function<void(JsonWriter&)> describe_more_;
  bool is_to_describe_ = false;
};

}  // namespace mpsshim::broker
