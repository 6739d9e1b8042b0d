// SPDX-License-Identifier: Apache-2.0
#include "broker/control/executor_instance.hpp"

#include <cerrno>

#include <unistd.h>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

ExecutorInstance::ExecutorInstance(EventLoop& loop, ExecutorLauncher& launcher, ExecutorLife life)
    : launcher_(launcher),
      life_(std::move(life)),
      progress_(proto::Mapping::map(life_.progress, 0, sizeof(ProgressFile), proto::Access::read_only)),
      calls_(proto::Mapping::map(life_.calls, 0, sizeof(CallTable), proto::Access::read_only)) {
  // By the time a handler is called somebody has set them, or nobody wants to know.
  link_ = std::make_unique<ExecutorLink>(
      loop, std::move(life_.link),
      [this](const ExecutorPacket& packet, proto::ReceivedFds& fds) {
        if (const auto arrived = handlers_.arrived) arrived(packet, fds);
      },
      [this] { kill(); });
  death_ = loop.watch(life_.pidfd.get(), EPOLLIN, [this](EventLoop::Events) {
    death_.reset();
    if (const auto died = handlers_.died) died();  // a copy: this object may be gone afterwards
  });
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

std::unique_ptr<proto::DriverFacts> ExecutorInstance::read_facts(unsigned device) const {
  auto facts = std::make_unique<proto::DriverFacts>();
  const ssize_t got = pread(life_.facts.get(), facts.get(), sizeof *facts, 0);
  if (got != static_cast<ssize_t>(sizeof *facts) || facts->size_bytes != sizeof *facts) return nullptr;
  if (facts->device_count == 0 || facts->device_count > proto::kMaxDevices || device >= facts->device_count) return nullptr;
  for (proto::DeviceFacts& each : facts->device) each.name[sizeof each.name - 1] = '\0';
  return facts;
}

void FadingExecutors::add(std::unique_ptr<ExecutorInstance> instance, std::chrono::milliseconds linger) {
  const auto fading = fading_.insert(fading_.end(), Fading{std::move(instance), {}});
  ExecutorInstance& process = *fading->instance;
  process.set_handlers({nullptr, [this, fading] {
                          log_debug("Executor {} (pid {}) {}", label_, fading->instance->pid(), fading->instance->reap());
                          fading_.erase(fading);
                        }});
  if (linger.count() == 0) return process.kill();
  fading->end = loop_.after(linger, [&process] { process.kill(); });
}

}  // namespace mpsshim::broker::control
