// SPDX-License-Identifier: Apache-2.0
// mpsctl: asks a running broker. The command comes from the arguments, or one a line from standard input. Exit status 0: every command was obeyed;
// 1: the broker refused one, or could not; 2: it could not be asked (no broker, no permission, a command line that cannot be understood). With the
// last two, one line on standard error says why.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "broker/command_line.hpp"
#include "broker/commands/command_table.hpp"
#include "broker/commands/parsed_command.hpp"
#include "broker/control/base/pipe_directory.hpp"
#include "broker/ctl/broker_client.hpp"
#include "broker/ctl/container_device.hpp"
#include "broker/ctl/line_reader.hpp"
#include "broker/ctl/top.hpp"
#include "broker/ctl/trace_lines.hpp"
#include "broker/run/parts.hpp"
#include "proto/handshake.hpp"

namespace {

using namespace mpsshim::broker;
using std::chrono::milliseconds;

constexpr milliseconds kAnswerLimit{60'000};  // work that is to stop is given time, and may have to be waited for
constexpr milliseconds kEndLimit{15'000};     // of a broker that waits for nobody any more
constexpr int kRefused = 1;
constexpr int kNotAsked = 2;
constexpr std::size_t kHelpWidth = 118;

int fail(int status, const std::string& why) {
  std::fflush(stdout);
  std::fprintf(stderr, "mpsctl: %s\n", why.c_str());
  return status;
}

// How long a broker may take that was told to quit; nothing: as long as it has clients.
std::optional<milliseconds> end_limit(const std::string& command) {
  std::istringstream words(command);
  std::string word;
  bool waits_for_clients = true;
  long seconds = 0;
  while (words >> word) {
    if (word == "--now") waits_for_clients = false;
    if (word == "-t" && words >> seconds) waits_for_clients = false;
  }
  if (waits_for_clients) return std::nullopt;
  return kEndLimit + milliseconds(1000 * seconds);
}

// `directory`: where the broker is, or would be.
int write_container_device(const ParsedCommand& command, const std::string& directory) {
  std::string why;
  const auto parts = run::find_parts(why);
  if (!parts) return fail(kRefused, why);
  std::error_code error;
  const std::string place = std::filesystem::absolute(directory, error).lexically_normal().string();
  const ctl::ContainerParts found{parts->library, parts->management_library, place + "/" + mpsshim::proto::kClientSocketName, ctl::group_of(place)};
  if (found.group.starts_with('_') || found.group.ends_with('_'))
    return fail(kRefused,
                fmt::format("a container's device cannot be called {}, as the group is: its name has to begin and end with a letter or a digit",
                            found.group));
  const std::string text = ctl::container_device(found);
  const std::string output = command.has("--output") ? command.text("--output") : ctl::container_device_file(found);
  if (output == "-") return std::fputs(text.c_str(), stdout) < 0 ? kRefused : 0;
  if (!ctl::replace_file(output, text, why)) return fail(kRefused, why);
  if (access(found.socket.c_str(), F_OK) != 0) {
    std::fprintf(stderr,
                 "mpsctl: written, but there is no socket %s yet, and without it no such container starts: systemctl enable --now mpsshim.socket\n",
                 found.socket.c_str());
  }
  return 0;
}

int write_timeline(const ParsedCommand& command) {
  std::string why;
  const std::vector<std::filesystem::path> timelines = ctl::timelines_of(command.text("FILE"), why);
  if (timelines.empty()) return fail(kRefused, why);
  const std::string output = command.has("--output") ? command.text("--output") : "-";
  ctl::TraceCount count;
  const bool is_written = output == "-" ? ctl::write_trace(timelines, stdout, count, why) : ctl::replace_trace(timelines, output, count, why);
  if (!is_written) return fail(kRefused, why);
  if (count.left_out != 0) {
    std::fprintf(stderr, "mpsctl: %zu lines were no events, cut off by the end of their processes or a full disk, and are left out\n",
                 count.left_out);
  }
  return 0;
}

// Those that no broker obeys. nullopt: it is none of them.
std::optional<int> execute_here(const std::string& line, const std::string& directory) {
  const CommandSpec* const spec = leading_command(line);
  if (spec == nullptr || !spec->is_local) return std::nullopt;
  const auto parsed = parse_command(line);
  if (const auto* fault = std::get_if<std::string>(&parsed)) return fail(kRefused, *fault);
  const auto& command = std::get<ParsedCommand>(parsed);
  if (command.name() == "trace") return write_timeline(command);
  if (command.name() != "top") return write_container_device(command, directory);
  const ctl::TopEnd end = ctl::run_top(directory, command);
  return end.status == 0 ? 0 : fail(end.status, end.fault);
}

int execute(const std::string& directory, const std::string& command) {
  if (const std::optional<int> status = execute_here(command, directory)) return *status;
  if (command.size() >= mpsshim::proto::kMaxMessageBytes) return fail(kNotAsked, "the command is too long");
  ctl::BrokerClient broker(directory);
  const ctl::Answer answer = broker.ask(command, kAnswerLimit);
  if (!answer.was_asked) return fail(kNotAsked, answer.text);
  if (!answer.ok) return fail(kRefused, answer.text);
  std::fputs(answer.text.c_str(), stdout);
  std::istringstream words(command);
  std::string name;
  words >> name;
  if (name == "quit" && !broker.await_end(end_limit(command))) {
    return fail(kRefused, "the broker in " + directory + " has not ended: see its control.log");
  }
  return 0;
}

// A person's are over with the broker that was told to end.
int execute_lines(const std::string& directory, const std::string& format) {
  int status = 0;
  ctl::LineReader lines;
  while (const std::optional<std::string> line = lines.next()) {
    std::istringstream words(*line);
    std::string name;
    if (!(words >> name)) continue;
    const int done = execute(directory, *line + format);
    status = std::max(status, done);
    if (lines.is_interactive() && name == "quit" && done == 0) break;
  }
  return status;
}

// As one line; nothing, after it was told, where a word would be lost in it.
std::optional<std::string> joined(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    if (word.find_first_not_of(" \t\r\n\v\f") == std::string::npos) {
      (void)fail(kNotAsked,
                 line.empty() ? "the command is empty: see mpsctl --help" : "there is an empty word after \"" + line + "\": see mpsctl --help");
      return std::nullopt;
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return line;
}

std::string footer() {
  return "Commands:\n" + commands_help(kHelpWidth) +
         "What has [--json] takes --format FORMAT, too: text, json, and of tables csv or csv,noheader\n"
         "Exit status: 0: obeyed; 1: refused, or it could not be done; 2: not asked (no broker, no permission, wrong usage)";
}

void describe_commands(JsonWriter& json) {
  const auto describe = [&json](const ArgumentSpec& argument) {
    json.begin_object().member("name", argument.name).member("kind", kind_name(argument.kind)).member("required", argument.is_required).end_object();
  };
  json.key("commands").begin_array();
  for (const CommandSpec& command : command_table()) {
    json.begin_object().member("name", command.name).member("usage", usage_of(command)).member("help", command.help).key("options").begin_array();
    for (const OptionSpec& option : command.options) {
      json.begin_object().member("name", option.name).key("value");
      option.value ? describe(*option.value) : static_cast<void>(json.null());
      json.end_object();
    }
    json.end_array().key("arguments").begin_array();
    for (const ArgumentSpec& argument : command.arguments) describe(argument);
    json.end_array().end_object();
  }
  json.end_array();
}

}  // namespace

int main(int argc, char** argv) {
  std::string pipe_dir;
  std::string format;
  bool is_json = false;
  bool is_to_quit = false;
  unsigned protocol = 2;
  CommandLine line("mpsctl: commands for a running mpsbroker; without a command, one a line from standard input");
  line.option("--pipe-dir", &pipe_dir,
              "Directory of the sockets (default: $CUDA_MPS_PIPE_DIRECTORY; else where a broker answers, of $XDG_RUNTIME_DIR/mpsshim, "
              "/run/user/<uid>/mpsshim, /tmp/mpsshim-<uid>, /run/mpsshim, /tmp/nvidia-mps, /run/nvidia-mps)");
  line.flag("--json", is_json, "As behind each command: it answers as a document of JSON, in one line");
  line.option("--format", &format, "The same for any form: text, json, csv, or csv,noheader");
  line.flag("-q,--quit", is_to_quit, "As the command quit, in place of a command");
  line.option("-p,--protocol", &protocol, "As NVIDIA has it, 2 or 3: without effect, since commands of both versions are understood at any time",
              CommandLine::Range{2u, 3u});
  line.take_remaining(footer());
  line.describe_also(describe_commands);
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;
  if (is_json && !format.empty()) return fail(kNotAsked, "--json and --format exclude each other");
  const std::string form = is_json ? " --json" : format.empty() ? "" : " --format " + format;
  std::vector<std::string> words = line.remaining();
  if (is_to_quit && (!words.empty() || !form.empty())) return fail(kNotAsked, "--quit takes no command and no form: see mpsctl --help");
  if (is_to_quit) words.emplace_back("quit");
  const std::optional<std::string> command = joined(words);
  if (!command) return kNotAsked;
  if (command->starts_with('-')) return fail(kNotAsked, "there is no option " + as_quoted(words.front()) + ": see mpsctl --help");
  if (const std::optional<int> status = execute_here(*command + form, control::choose_pipe_directory(pipe_dir))) return *status;
  const std::vector<std::string> directories = control::pipe_directories_to_search(pipe_dir);
  const ctl::Found found = ctl::find_broker(directories, directories.size() == 1 ? ctl::Trust::anybody : ctl::Trust::user_and_root);
  if (found.reach == ctl::Reach::absent || found.reach == ctl::Reach::forbidden) {
    return fail(kNotAsked, ctl::absence(found.directory, found.error));
  }
  return words.empty() ? execute_lines(found.directory, form) : execute(found.directory, *command + form);
}
