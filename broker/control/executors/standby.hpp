// SPDX-License-Identifier: Apache-2.0
// A process that waits to be the next life of an executor. Warm: the driver loaded, the context made, our own kernels and all images of the load
// log loaded. Cold: the driver loaded and initialised; it costs no device memory, and may be warmed up. It has no sessions.
// Started when things are calm; one that dies, or that the driver refuses, is tried again after a pause, which costs nobody anything.
// Owned by ManagedExecutor; the control process's thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/executors/executor_instance.hpp"

namespace mpsshim::broker::control {

class Standby {
 public:
  struct Events {
    std::function<void()> waits;                     // it is ready, or as ready as it may be
    std::function<void(ReceivedMessage&)> compiles;  // what it has, or wants, made from an image
  };
  Standby(EventLoop& loop, ExecutorLauncher& launcher, const std::string& label, FadingExecutors& fading, Events events)
      : loop_(loop), launcher_(launcher), label_(label), fading_(fading), events_(std::move(events)) {}

  // In `delay`, if there is none by then. Cold or warm: options.is_cold.
  void start(std::chrono::milliseconds delay, const ExecutorOptions& options);
  // A cold one makes its context. If there is none, one is started with `options`.
  void warm_up(const ExecutorOptions& options);
  // Ends the process, if there is one, and starts none.
  void stop();

  // The process, however far it has come, for its new role; nullptr if there is none.
  [[nodiscard]] std::unique_ptr<ExecutorInstance> take();
  // nullptr while there is none.
  [[nodiscard]] ExecutorInstance* instance() const { return instance_.get(); }
  [[nodiscard]] bool has_come_to(ExecutorInstance::Stage stage) const { return instance_ && instance_->stage >= stage; }

 private:
  void launch();
  void arrived(ReceivedMessage& received);
  void waits(ExecutorInstance::Stage stage);
  void try_later(const std::string& why);

  EventLoop& loop_;
  ExecutorLauncher& launcher_;
  const std::string& label_;
  FadingExecutors& fading_;
  const Events events_;
  ExecutorOptions options_;
  std::unique_ptr<ExecutorInstance> instance_;
  EventLoop::Timer timer_;
};

}  // namespace mpsshim::broker::control
