// SPDX-License-Identifier: Apache-2.0
#include "broker/log.hpp"

#include <cerrno>
#include <memory>
#include <vector>

#include <fcntl.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include "broker/printable.hpp"

namespace mpsshim::broker {

namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    case LogLevel::error: return spdlog::level::err;
  }
  return spdlog::level::info;
}

// "[2026-01-31 12:00:00.000 " and what `rest` makes of the line.
std::shared_ptr<spdlog::logger> make_logger(std::vector<spdlog::sink_ptr> sinks, const std::string& rest) {
  auto logger = std::make_shared<spdlog::logger>("mpsshim", sinks.begin(), sinks.end());
  logger->set_pattern("[%Y-%m-%d %H:%M:%S.%e " + rest);
  logger->flush_on(spdlog::level::trace);
  logger->set_error_handler([](const std::string&) {});  // a full disk must not end the broker
  return logger;
}

// The library takes the pattern literally, so a percent sign in the identity would be a flag.
std::string pattern_of(const std::string& identity) { return (identity.find('%') == std::string::npos ? identity : "?") + " %P] %v"; }

std::shared_ptr<spdlog::logger>& current() {
  static std::shared_ptr<spdlog::logger> logger = make_logger({std::make_shared<spdlog::sinks::stderr_sink_mt>()}, pattern_of("Broker"));
  return logger;
}

std::shared_ptr<spdlog::logger>& server_log() {
  static std::shared_ptr<spdlog::logger> logger;
  return logger;
}

// Tells whether the library will be able to append (it reports by exception, without errno).
bool can_append(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

}  // namespace

bool open_log(const LogOptions& options) {
  std::vector<spdlog::sink_ptr> sinks;
  bool good = true;
  if (!options.path.empty()) {
    good = can_append(options.path);
    if (good) sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.path));
  }
  const int error = errno;
  if (options.to_standard_error || !good) sinks.push_back(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  current() = make_logger(std::move(sinks), pattern_of(options.identity));
  current()->set_level(spdlog_level(options.least));
  errno = error;
  return good;
}

void write_log(LogLevel level, std::string_view line) { current()->log(spdlog_level(level), printable(line)); }

bool open_server_log(const std::string& path) {
  if (!can_append(path)) return false;
  server_log() = make_logger({std::make_shared<spdlog::sinks::basic_file_sink_mt>(path)}, "%v");
  return true;
}

void write_server_log(pid_t server, std::string_view line) {
  if (server_log()) server_log()->log(spdlog::level::info, "Server {}] {}", server, printable(line));
}

}  // namespace mpsshim::broker
