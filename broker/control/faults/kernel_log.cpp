// SPDX-License-Identifier: Apache-2.0
#include "broker/control/faults/kernel_log.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <utility>

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

namespace mpsshim::broker::control {

namespace {

constexpr int kMostLines = 10'000;  // a visit; a kernel that logs without end must not hold up everybody
constexpr std::size_t kLongestText = 300;

template <typename Number>
std::optional<Number> number_at(std::string_view text, int base = 10) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// What follows `key`, if it is there.
std::optional<std::string_view> after(std::string_view text, std::string_view key) {
  const std::size_t found = text.find(key);
  if (found == std::string_view::npos) return std::nullopt;
  return text.substr(found + key.size());
}

// "0x7f0c_7fe00000" or "0x7f0c7fe00000".
std::optional<std::uint64_t> address_at(std::string_view text) {
  if (!text.starts_with("0x")) return std::nullopt;
  std::string digits;
  for (const char c : text.substr(2)) {
    if (c == '_') continue;
    if (!std::isxdigit(static_cast<unsigned char>(c))) break;
    digits += c;
  }
  return digits.size() <= 16 ? number_at<std::uint64_t>(digits, 16) : std::nullopt;
}

}  // namespace

std::optional<XidLine> parse_xid(std::string_view line) {
  const std::size_t begin = line.find("NVRM: Xid (");
  if (begin == std::string_view::npos) return std::nullopt;
  const std::string_view text = line.substr(begin + 6);
  const auto number = after(text, "): ");
  const auto xid = number ? number_at<unsigned>(*number) : std::nullopt;
  if (!xid) return std::nullopt;
  XidLine parsed;
  parsed.number = *xid;
  parsed.text = std::string(text.substr(0, std::min(text.find('\n'), kLongestText)));
  if (auto pid = after(text, "pid=")) {
    if (pid->starts_with('\'')) pid->remove_prefix(1);
    parsed.pid = number_at<pid_t>(*pid).value_or(-1);
  }
  if (const auto address = after(text, "faulted @ ")) parsed.address = address_at(*address);
  return parsed;
}

KernelLog::KernelLog(const char* path) : file_(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (file_.valid() && lseek(file_.get(), 0, SEEK_END) < 0) file_.reset();
}

void KernelLog::listen(EventLoop& loop, std::function<void(const XidLine&)> told) {
  told_ = std::move(told);
  if (file_.valid()) watch_ = loop.watch(file_.get(), EPOLLIN, [this](EventLoop::Events) { read_on(); });
}

void KernelLog::read_on() {
  if (!file_.valid()) return;
  std::array<char, 8192> record;  // the kernel gives one record a read, and refuses a buffer that is too small
  for (int i = 0; i < kMostLines; ++i) {
    const ssize_t bytes = read(file_.get(), record.data(), record.size());
    if (bytes < 0 && (errno == EPIPE || errno == EINTR)) continue;  // EPIPE: records were overwritten before we came
    if (bytes < 0 && errno == EAGAIN) return;
    if (bytes <= 0) {
      watch_ = {};  // it would be ready for ever
      return;
    }
    const std::optional<XidLine> line = parse_xid({record.data(), static_cast<std::size_t>(bytes)});
    if (!line) continue;
    if (line->pid > 0) note(*line);
    if (told_) told_(*line);
  }
}

// Of very many processes the one that was heard of longest ago is forgotten. A pid that comes again after a while is another process.
void KernelLog::note(XidLine line) {
  const ProgressTick now = progress_tick();
  const auto age = [&](const auto& entry) { return now - entry.second.last; };
  auto known = heard_.find(line.pid);
  if (known != heard_.end() && age(*known) > kLongestStandstillAtRest) {
    heard_.erase(known);
    known = heard_.end();
  }
  if (known == heard_.end()) {
    if (heard_.size() >= kMostProcesses) heard_.erase(std::ranges::max_element(heard_, {}, age));
    const pid_t pid = line.pid;
    heard_[pid] = {std::move(line), now, now};
    return;
  }
  known->second.last = now;
  if (!known->second.line.address) known->second.line = std::move(line);
}

std::optional<XidLine> KernelLog::find(pid_t pid) {
  read_on();
  const auto known = heard_.find(pid);
  if (known == heard_.end()) return std::nullopt;
  std::optional<XidLine> line = std::move(known->second.line);
  heard_.erase(known);
  return line;
}

std::optional<ProgressTick> KernelLog::first_heard(pid_t pid) {
  read_on();
  const auto known = heard_.find(pid);
  if (!watch_ || known == heard_.end() || progress_tick() - known->second.first > kLongestStandstillAtRest) return std::nullopt;
  return known->second.first;
}

}  // namespace mpsshim::broker::control
