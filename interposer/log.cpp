// SPDX-License-Identifier: Apache-2.0
#include "interposer/log.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <string_view>

#include <unistd.h>

#include "interposer/cancellation.hpp"
#include "interposer/environment.hpp"
#include "proto/file_size_limit.hpp"

namespace mpsshim::interposer {

namespace {

struct TopicName {
  DebugTopic topic;
  std::string_view name;
};
constexpr std::array kTopics = {
    TopicName{DebugTopic::env, "env"},     TopicName{DebugTopic::settle, "settle"},
    TopicName{DebugTopic::calls, "calls"}, TopicName{DebugTopic::unsupported, "unsupported"},
    TopicName{DebugTopic::wait, "wait"},   TopicName{DebugTopic::channel, "channel"},
    TopicName{DebugTopic::cache, "cache"},
};

constexpr std::uint32_t kRead = 1u << 31;  // the variable was read
std::atomic<std::uint32_t> topics{0};      // bit by DebugTopic; two threads that read the variable at once store the same

constexpr std::uint32_t bit(DebugTopic topic) { return 1u << static_cast<std::uint32_t>(topic); }

// Its own line: nothing may be enabled by it.
void tell_unknown(std::string_view word) {
  std::array<char, 128> known{};  // no allocation here: log.hpp
  std::size_t length = 0;
  for (const TopicName& topic : kTopics) {
    length += static_cast<std::size_t>(
        std::snprintf(known.data() + length, known.size() - length, "%.*s, ", static_cast<int>(topic.name.size()), topic.name.data()));
  }
  log_line("MPSSHIM_DEBUG has no topic \"%.*s\": there are %sand all.", static_cast<int>(std::min<std::size_t>(word.size(), 64)), word.data(),
           known.data());
}

std::uint32_t read_topics() {
  std::uint32_t enabled = kRead;
  std::string_view strange;
  std::string_view rest = environment_value(Variable::debug);
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, comma);
    bool is_known = word.empty();
    for (const TopicName& known : kTopics) {
      if (word != known.name && word != "all") continue;
      enabled |= bit(known.topic);
      is_known = true;
    }
    if (!is_known) strange = word;
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  const std::uint32_t former = topics.exchange(enabled, std::memory_order_relaxed);
  if (!strange.empty() && former == 0) tell_unknown(strange);
  return enabled;
}

// The line is cut, not split, where it is too long: a second write could stand somewhere else.
void write_line(const char* format, std::va_list arguments) {
  const NoCancellation hold;
  const proto::NoFileSizeSignal no_signal;
  const int saved_errno = errno;  // callers report errno to applications
  std::array<char, 1024> line;
  const int head = std::snprintf(line.data(), line.size(), "mpsshim[%d]: ", static_cast<int>(getpid()));
  const int body = std::vsnprintf(line.data() + head, line.size() - static_cast<std::size_t>(head), format, arguments);
  const std::size_t length = std::min(static_cast<std::size_t>(head + std::max(body, 0)), line.size() - 1);
  line[length] = '\n';
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), length + 1);
  errno = saved_errno;
}

}  // namespace

bool debug_enabled(DebugTopic topic) {
  std::uint32_t enabled = topics.load(std::memory_order_relaxed);
  if (enabled == 0) enabled = read_topics();
  return (enabled & bit(topic)) != 0;
}

void log_line(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  write_line(format, arguments);
  va_end(arguments);
}

void debug_line(DebugTopic topic, const char* format, ...) {
  if (!debug_enabled(topic)) return;
  std::va_list arguments;
  va_start(arguments, format);
  write_line(format, arguments);
  va_end(arguments);
}

}  // namespace mpsshim::interposer
