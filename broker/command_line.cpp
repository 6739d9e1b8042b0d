// SPDX-License-Identifier: Apache-2.0
#include "broker/command_line.hpp"

#include <algorithm>
#include <cstdio>

#include <CLI/CLI.hpp>

#include "broker/printable.hpp"

namespace mpsshim::broker {

namespace {

constexpr int kWrongUsage = 2;

// CLI11 takes an empty word for the number 0.
std::string refuse_empty(const std::string& word) { return word.empty() ? "\"\" is no number" : ""; }

CLI::Option* add_option(CLI::App& app, const std::string& name, const CommandLine::Value& value, const std::string& help) {
  CLI::Option* const option = std::visit([&](auto* target) { return app.add_option(name, *target, help); }, value);
  if (!std::holds_alternative<std::string*>(value)) option->check(CLI::Validator(refuse_empty, ""));
  return option;
}

bool is_empty_text(const CommandLine::Value& value) {
  const auto* text = std::get_if<std::string*>(&value);
  return text != nullptr && (*text)->empty();
}

}  // namespace

CommandLine::CommandLine(const std::string& description) : app_(std::make_unique<CLI::App>(description)), description_(description) {
  app_->set_version_flag("-v,--version", MPSSHIM_VERSION);
  hidden_flag("--describe", is_to_describe_);
}

CommandLine::~CommandLine() = default;

void CommandLine::flag(const std::string& names, bool& value, const std::string& help, const std::string& excludes) {
  CLI::Option* option = app_->add_flag(names, value, help);
  if (!excludes.empty()) option->excludes(app_->get_option(excludes));
}

void CommandLine::option(const std::string& name, Value value, const std::string& help, std::optional<Range> range) {
  CLI::Option* option = add_option(*app_, name, value, help);
  if (range) option->check(CLI::Range(range->least, range->most));
  if (!is_empty_text(value)) option->capture_default_str();
}

void CommandLine::test_option(const std::string& name, Value value, const std::string& help) {
  add_option(*app_, name, value, help)->capture_default_str()->group("For tests of the broker");
}

void CommandLine::hidden_flag(const std::string& name, bool& value) { app_->add_flag(name, value)->group(""); }

void CommandLine::hidden_option(const std::string& name, Value value) { add_option(*app_, name, value, "")->group(""); }

void CommandLine::take_remaining(const std::string& footer) {
  app_->footer(footer);
  app_->prefix_command();
}

std::optional<int> CommandLine::parse(int argc, char** argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  for (std::string& word : words) {
    if (std::ranges::find(single_dash_, word) != single_dash_.end()) word.insert(0, "-");
  }
  std::ranges::reverse(words);  // as CLI11 takes them
  try {
    app_->name(argc > 0 ? argv[0] : "");
    app_->parse(words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app_->exit(error);  // help, or the version
    const std::string program = description_.substr(0, description_.find(':'));
    std::fprintf(stderr, "%s: %s: see %s --help\n", program.c_str(), printable(error.what()).c_str(), program.c_str());
    return kWrongUsage;
  }
  if (!is_to_describe_) return std::nullopt;
  print_description();
  return 0;
}

void CommandLine::print_description() const {
  JsonWriter json;
  const std::size_t colon = description_.find(": ");
  json.begin_object().member("schema", "mpsshim.description").member("version", 1);
  json.member("program", description_.substr(0, colon)).member("purpose", description_.substr(colon + 2)).key("options").begin_array();
  for (const CLI::Option* option : app_->get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    json.begin_object().key("names").begin_array();
    for (const std::string& name : option->get_snames()) json.value("-" + name);
    for (const std::string& name : option->get_lnames()) json.value("--" + name);
    json.end_array().member("takes_value", option->get_items_expected_max() > 0).member("type", option->get_type_name());
    json.member("default", option->get_default_str()).member("group", option->get_group()).member("help", option->get_description()).end_object();
  }
  json.end_array();
  if (describe_more_) describe_more_(json);
  std::printf("%s\n", json.end_object().text().c_str());
}

std::vector<std::string> CommandLine::remaining() const { return app_->remaining(); }

}  // namespace mpsshim::broker
