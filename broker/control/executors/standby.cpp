// SPDX-License-Identifier: Apache-2.0
#include "broker/control/executors/standby.hpp"

#include <cuda.h>

#include <cerrno>
#include <cstring>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr std::chrono::seconds kPause{10};  // after one that could not be had
}

void Standby::start(std::chrono::milliseconds delay, const ExecutorOptions& options) {
  options_ = options;
  if (!instance_) timer_ = loop_.after(delay, [this] { launch(); });
}

void Standby::warm_up(const ExecutorOptions& options) {
  if (!instance_) return start(std::chrono::milliseconds(0), options);
  instance_->make_context();
}

void Standby::stop() {
  timer_.reset();
  if (instance_) fading_.add(std::move(instance_), label_);
}

std::unique_ptr<ExecutorInstance> Standby::take() {
  timer_.reset();
  return std::move(instance_);
}

void Standby::launch() {
  timer_.reset();
  instance_ = ExecutorInstance::launch(loop_, launcher_, options_);
  if (!instance_) return try_later(fmt::format("its process could not be started ({})", std::strerror(errno)));
  instance_->set_handlers({[this](ReceivedMessage& received) { arrived(received); },
                           [this] {
                             instance_->drain();
                             const std::string end = instance_->reap();
                             instance_.reset();
                             try_later("it " + end);
                           }});
}

void Standby::arrived(ReceivedMessage& received) {
  switch (received.id()) {
    case ExecutorMessage::standing_by: return waits(ExecutorInstance::Stage::standing_by);
    case ExecutorMessage::ready:
      if (received.read<message::Ready>().status == CUDA_SUCCESS) return waits(ExecutorInstance::Stage::ready);
      // Not from inside the link that is calling.
      timer_ = loop_.after(std::chrono::milliseconds(0), [this, status = received.read<message::Ready>().status] {
        stop();
        try_later(fmt::format("its context could not be made (CUDA error {})", status));
      });
      return;
    case ExecutorMessage::image_compiled:
    case ExecutorMessage::link_want: return events_.compiles(received);
    case ExecutorMessage::fault: return instance_->kill();
    default: return;  // its death tells the rest
  }
}

void Standby::waits(ExecutorInstance::Stage stage) {
  instance_->stage = stage;
  log_info("Executor {}: a standby (pid {}) is ready after {} ms{}.", label_, instance_->pid(),
           std::chrono::duration_cast<std::chrono::milliseconds>(EventLoop::Clock::now() - instance_->launched_at()).count(),
           stage == ExecutorInstance::Stage::ready ? "" : ", but for its context");
  events_.waits();
}

void Standby::try_later(const std::string& why) {
  log_warning("Executor {} has no standby, because {}; another is tried in {} s. Until then a recovery takes an executor's whole start.", label_, why,
              kPause.count());
  timer_ = loop_.after(kPause, [this] { launch(); });
}

}  // namespace mpsshim::broker::control
