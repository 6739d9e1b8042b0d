// SPDX-License-Identifier: Apache-2.0
#include "broker/log.hpp"

#include <cerrno>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include "broker/journal.hpp"
#include "broker/log_file.hpp"
#include "broker/log_quota.hpp"
#include "broker/log_subject.hpp"
#include "broker/printable.hpp"
#include "proto/mutex.hpp"

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

// Where lines go besides, set with the rest before there are threads.
struct ToJournal {
  std::unique_ptr<Journal> journal;
  std::string from;
  std::string log;
};
ToJournal& to_journal() {
  static ToJournal& target = *new ToJournal;  // never destroyed: other threads may log to the end
  return target;
}

int priority_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return 7;
    case LogLevel::info: return 6;
    case LogLevel::warning: return 4;
    case LogLevel::error: return 3;
  }
  return 6;
}

// To be opened anew.
std::vector<std::shared_ptr<LogFile>>& log_files() {
  static std::vector<std::shared_ptr<LogFile>> files;
  return files;
}

std::shared_ptr<LogFile> make_log_file(const std::string& path) { return log_files().emplace_back(std::make_shared<LogFile>(path)); }

struct Quota {
  std::uint64_t bytes = 0;  // set, with the rest, before there are threads
  std::optional<uid_t> whose;
  Mutex mutex;
  std::optional<LogQuota> accounts GUARDED_BY(mutex);
};
Quota& quota() {
  static Quota& quota = *new Quota;  // never destroyed: other threads may log to the end
  return quota;
}
thread_local std::optional<uid_t> subject;

std::string left_out_line(std::uint64_t count, uid_t user, std::uint64_t bytes) {
  return fmt::format("{} lines about clients of user {} were left out: there may be {} MiB an hour (--user-log-mib).", count, user, bytes >> 20);
}

// Whether a line may be written; `before`: another one that goes before it, or nothing.
bool may_write(LogLevel level, std::size_t line_bytes, std::string& before) {
  Quota& limits = quota();
  const std::optional<uid_t> user = log_subject();
  if (limits.bytes == 0 || !user) return true;
  const std::lock_guard lock(limits.mutex);
  const auto now = LogQuota::Clock::now();
  if (!limits.accounts->take(*user, level, line_bytes, now)) return false;
  if (const std::uint64_t count = limits.accounts->take_left_out(*user, now); count != 0) before = left_out_line(count, *user, limits.bytes);
  return true;
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
    if (good) sinks.push_back(make_log_file(options.path));
  }
  const int error = errno;
  to_journal() = {options.journal.empty() ? nullptr : std::make_unique<Journal>(options.journal), options.identity, options.log};
  if (options.to_standard_error || !good) sinks.push_back(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  current() = make_logger(std::move(sinks), pattern_of(options.identity));
  current()->set_level(spdlog_level(options.least));
  errno = error;
  return good;
}

bool journal_takes(std::string_view line) {
  const ToJournal& target = to_journal();
  return target.journal == nullptr || target.journal->write(priority_of(LogLevel::info), target.log, target.from, line);
}

LogSubject::LogSubject(uid_t user) : before_(std::exchange(subject, user)) {}

LogSubject::~LogSubject() { subject = before_; }

std::optional<uid_t> log_subject() { return subject ? subject : quota().whose; }

void set_log_quota(std::uint64_t bytes, std::optional<uid_t> whose) {
  const std::lock_guard lock(quota().mutex);
  quota().bytes = bytes;
  quota().whose = whose;
  quota().accounts.emplace(bytes);
}

void write_log(LogLevel level, std::string_view line) {
  if (!current()->should_log(spdlog_level(level))) return;
  std::string before;
  if (!may_write(level, line.size(), before)) return;
  const std::string text = printable(line);
  const ToJournal& target = to_journal();
  if (!before.empty()) current()->log(spdlog::level::warn, before);
  current()->log(spdlog_level(level), text);
  if (target.journal == nullptr) return;
  if (!before.empty()) target.journal->write(priority_of(LogLevel::warning), target.log, target.from, before);
  target.journal->write(priority_of(level), target.log, target.from, text);
}

bool open_server_log(const std::string& path) {
  if (!can_append(path)) return false;
  server_log() = make_logger({make_log_file(path)}, "%v");
  return true;
}

void reopen_log_files() {
  for (const std::shared_ptr<LogFile>& file : log_files()) file->reopen();
}

void write_server_log(pid_t server, std::string_view line) {
  const ToJournal& target = to_journal();
  if (!server_log() && target.journal == nullptr) return;
  std::string before;
  if (!may_write(LogLevel::warning, line.size(), before)) return;  // faults and verdicts are among them
  const std::string text = printable(line);
  if (server_log()) {
    if (!before.empty()) server_log()->log(spdlog::level::info, "Server {}] {}", server, before);
    server_log()->log(spdlog::level::info, "Server {}] {}", server, text);
  }
  if (target.journal == nullptr) return;
  const std::string from = fmt::format("Server {}", server);
  if (!before.empty()) target.journal->write(priority_of(LogLevel::warning), "server", from, before);
  target.journal->write(priority_of(LogLevel::info), "server", from, text);
}

}  // namespace mpsshim::broker
