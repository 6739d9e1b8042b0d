// SPDX-License-Identifier: Apache-2.0
// The broker's log, for control process and executor alike; the only place, with log_file.*, that knows the logging library.
// A line is a sentence with value, identity and remedy, and stays one line whatever names stand in it (printable.hpp). Lines are written at once (a
// process that is killed has logged what it did). open_log() once, from the first thread; the rest from any thread. Before open_log() lines go to
// standard error. Files are LogFile's (log_file.hpp): they may be moved away under the broker, and a full disk is told. The journal is Journal's.
#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>
#include <sys/types.h>

namespace mpsshim::broker {

enum class LogLevel { debug, info, warning, error };

struct LogOptions {
  std::string path;             // appended to; empty: no file
  std::string identity;         // "Control", "Executor 0": stands in each line before the pid
  bool to_standard_error = false;
  LogLevel least = LogLevel::info;
  std::string journal{};        // the socket of systemd's journal, which lines go to as well; empty: they do not
  std::string log = "control";  // which of the two logs it is, for the journal
};

// False if the file cannot be written (errno); lines then go to standard error as well. A journal that is not there costs lines, and is no fault
// here.
bool open_log(const LogOptions& options);
// Writes the line to the journal alone. False: it is not there (errno). True also where nothing is logged there.
[[nodiscard]] bool journal_takes(std::string_view line);
void write_log(LogLevel level, std::string_view line);
void reopen_log_files();  // those of this process

// server.log, as the control process writes it beside its own: what becomes of servers (executors) and their clients, in the manual's kinds of
// message ("MPS Logging Format"). A dying server cannot say it itself. The executors append their own lines to the same file.
[[nodiscard]] bool open_server_log(const std::string& path);
void write_server_log(pid_t server, std::string_view line);  // nothing before open_server_log(), but for the journal

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  write_log(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  write_log(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  write_log(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  write_log(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void log_server(pid_t server, fmt::format_string<Args...> format, Args&&... args) {
  write_server_log(server, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace mpsshim::broker
