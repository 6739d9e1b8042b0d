// SPDX-License-Identifier: Apache-2.0
#include "broker/control/executors/executor_instance.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "broker/control/base/output_box.hpp"
#include "broker/log.hpp"
#include "broker/printable.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr std::size_t kMaxErrors = 64u << 10;
}

ExecutorInstance::ExecutorInstance(EventLoop& loop, ExecutorLauncher& launcher, ExecutorLife life)
    : launcher_(launcher),
      life_(std::move(life)),
      progress_(proto::Mapping::map(life_.progress, 0, sizeof(ProgressFile), proto::Access::read_only)),
      calls_(proto::Mapping::map(life_.calls, 0, sizeof(CallTable), proto::Access::read_only)) {
  // By the time a handler is called somebody has set them, or nobody wants to know.
  link_ = std::make_unique<ExecutorLink>(
      loop, std::move(life_.link),
      [this](ReceivedMessage& received) {
        if (const auto arrived = handlers_.arrived) arrived(received);
      },
      [this] { kill(); });
  if (life_.errors.valid()) errors_watch_ = loop.watch(life_.errors.get(), EPOLLIN, [this](EventLoop::Events) { pass_errors_on(); });
  death_ = loop.watch(life_.pidfd.get(), EPOLLIN, [this](EventLoop::Events) {
    death_.reset();
    if (const auto died = handlers_.died) died();  // a copy: this object may be gone afterwards
  });
}

// To our own standard error, which may be server.log: a line at a time, with whose it is in front, since what stands in it may be a client's choice
// (the words of a failed assertion).
void ExecutorInstance::pass_errors_on() {
  std::array<char, 4096> buffer;
  ssize_t got = 0;
  while ((got = read(life_.errors.get(), buffer.data(), buffer.size())) > 0) {
    const std::string_view text(buffer.data(), static_cast<std::size_t>(got));
    unfinished_ += text;
    pass_lines_on(unfinished_.size() >= kLongestLogLine);
    errors_ += text;
    if (errors_.size() > kMaxErrors) errors_.erase(0, errors_.size() - kMaxErrors);
  }
  if (got != 0) return;
  errors_watch_.reset();  // nobody has the other end any more
  pass_lines_on(true);
}

// `all`: what has no end yet as well.
void ExecutorInstance::pass_lines_on(bool all) {
  std::string lines;
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = unfinished_.find('\n', begin)) != std::string::npos || (all && begin < unfinished_.size()); begin = end + 1) {
    end = std::min(end, unfinished_.size());
    lines += fmt::format("Executor (pid {}) says: {}\n", life_.pid, printable(std::string_view(unfinished_).substr(begin, end - begin)));
  }
  unfinished_.erase(0, std::min(begin, unfinished_.size()));
  (void)!write(STDERR_FILENO, lines.data(), lines.size());
}

std::string ExecutorInstance::assertions() {
  if (life_.errors.valid()) pass_errors_on();
  std::string found;
  for (std::size_t at = 0; at < errors_.size();) {
    const std::size_t end = std::min(errors_.find('\n', at), errors_.size() - 1) + 1;
    const std::string_view line = std::string_view(errors_).substr(at, end - at);
    if (line.find(" Assertion `") != std::string_view::npos) found += line;
    at = end;
  }
  return found;
}

std::string ExecutorInstance::read_output(std::uint64_t offset, std::uint64_t size_bytes) {
  const std::uint64_t wanted = std::min<std::uint64_t>(size_bytes, OutputBox::kMaxBytes);
  std::string text(wanted, '\0');
  const ssize_t got = pread(life_.output.get(), text.data(), text.size(), static_cast<off_t>(offset + size_bytes - wanted));
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  fallocate(life_.output.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(size_bytes));
  return text;
}

std::unique_ptr<ExecutorInstance> ExecutorInstance::launch(EventLoop& loop, ExecutorLauncher& launcher, const ExecutorOptions& options) {
  auto life = launcher.launch(options);
  if (!life) return nullptr;
  std::unique_ptr<ExecutorInstance> instance(new ExecutorInstance(loop, launcher, std::move(*life)));
  if (instance->progress_) return instance;
  const int error = errno;
  instance->kill();
  (void)instance->reap();
  errno = error;
  return nullptr;
}

void ExecutorInstance::make_context() { send(message::MakeContext{}); }

std::unique_ptr<proto::DriverFacts> ExecutorInstance::read_facts(unsigned device) const {
  auto facts = std::make_unique<proto::DriverFacts>();
  const ssize_t got = pread(life_.facts.get(), facts.get(), sizeof *facts, 0);
  if (got != static_cast<ssize_t>(sizeof *facts) || facts->size_bytes != sizeof *facts) return nullptr;
  if (facts->device_count == 0 || facts->device_count > proto::kMaxDevices || device >= facts->device_count) return nullptr;
  for (proto::DeviceFacts& each : facts->device) each.name[sizeof each.name - 1] = '\0';
  return facts;
}

void FadingExecutors::add(std::unique_ptr<ExecutorInstance> instance, std::string label, std::chrono::milliseconds linger) {
  const auto fading = fading_.insert(fading_.end(), Fading{std::move(instance), std::move(label), {}});
  ExecutorInstance& process = *fading->instance;
  process.set_handlers({nullptr, [this, fading] {
                          log_debug("Executor {} (pid {}) {}", fading->label, fading->instance->pid(), fading->instance->reap());
                          fading_.erase(fading);
                        }});
  if (linger.count() == 0) return process.kill();
  fading->end = loop_.after(linger, [&process] { process.kill(); });
}

}  // namespace mpsshim::broker::control
