// SPDX-License-Identifier: Apache-2.0
#include "broker/command_line.hpp"

#include <CLI/CLI.hpp>

namespace mpsshim::broker {

namespace {

CLI::Option* add_option(CLI::App& app, const std::string& name, const CommandLine::Value& value, const std::string& help) {
  return std::visit([&](auto* target) { return app.add_option(name, *target, help); }, value);
}

bool is_empty_text(const CommandLine::Value& value) {
  const auto* text = std::get_if<std::string*>(&value);
  return text != nullptr && (*text)->empty();
}

}  // namespace

CommandLine::CommandLine(const std::string& description) : app_(std::make_unique<CLI::App>(description)) {
  app_->set_version_flag("--version", MPSSHIM_VERSION);
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
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app_->exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

std::vector<std::string> CommandLine::remaining() const { return app_->remaining(); }

}  // namespace mpsshim::broker
