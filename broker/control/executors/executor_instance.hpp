// SPDX-License-Identifier: Apache-2.0
// One process of an executor from its launch to its end: the process, the link to it, the tables it shares with the control process. Which role
// it has, and so who hears of it, may change: a standby becomes the one that serves, the one that served fades away.
// Owned by ManagedExecutor, Standby or FadingExecutors; the control process's thread. Nothing kills the process when this object goes.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>

#include "broker/control/base/call_watch.hpp"
#include "broker/control/base/event_loop.hpp"
#include "broker/control/executors/executor_link.hpp"
#include "broker/control/processes/executor_process.hpp"
#include "broker/progress_table.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::broker::control {

class ExecutorInstance {
 public:
  enum class Stage {
    starting,
    standing_by,  // cold: its driver is initialised, and it has no context
    ready,
  };
  struct Handlers {
    std::function<void(ReceivedMessage&)> arrived;
    std::function<void()> died;  // not reaped yet; drain() hands on what it last said
  };

  // nullptr on failure (errno).
  [[nodiscard]] static std::unique_ptr<ExecutorInstance> launch(EventLoop& loop, ExecutorLauncher& launcher, const ExecutorOptions& options);

  void set_handlers(Handlers handlers) { handlers_ = std::move(handlers); }
  void send(const OutgoingMessage& message) { link_->send(message); }
  void drain() { link_->drain(); }
  void make_context();  // if it is cold, now or once its driver is initialised
  void kill() { launcher_.kill(life_); }
  void halt() { launcher_.halt(life_); }
  [[nodiscard]] bool stands_still() const { return launcher_.stands_still(life_); }
  [[nodiscard]] std::string reap() { return launcher_.reap(life_); }

  // Copied from its file. nullptr: of another layout, or without that device.
  [[nodiscard]] std::unique_ptr<proto::DriverFacts> read_facts(unsigned device) const;
  // A part of what it has written to its standard output, which it keeps no longer. At most the last 4 MiB of it.
  [[nodiscard]] std::string read_output(std::uint64_t offset, std::uint64_t size_bytes);
  // What its driver has said on standard error about failed assertions.
  [[nodiscard]] std::string assertions();
  [[nodiscard]] pid_t pid() const { return life_.pid; }
  [[nodiscard]] const ProgressFile& progress() const { return *reinterpret_cast<const ProgressFile*>(progress_.data()); }
  [[nodiscard]] CallWatch& calls() { return calls_; }
  [[nodiscard]] EventLoop::Clock::time_point launched_at() const { return launched_at_; }

  Stage stage = Stage::starting;
  std::size_t loads_given = 0;  // entries of the load log that it was told

 private:
  ExecutorInstance(EventLoop& loop, ExecutorLauncher& launcher, ExecutorLife life);
  void pass_errors_on();
  void pass_lines_on(bool all);

  ExecutorLauncher& launcher_;
  ExecutorLife life_;
  proto::Mapping progress_;
  CallWatch calls_;
  const EventLoop::Clock::time_point launched_at_ = EventLoop::Clock::now();
  Handlers handlers_;
  std::unique_ptr<ExecutorLink> link_;
  EventLoop::Watch death_;
  EventLoop::Watch errors_watch_;
  std::string errors_;      // the end of what came
  std::string unfinished_;  // a line of it
};

// Processes that nobody needs any more, until they are gone: a dead context takes the driver some 300 ms to take down. Of all executors of a pool:
// an executor may be forgotten before its last process has been reaped.
class FadingExecutors {
 public:
  explicit FadingExecutors(EventLoop& loop) : loop_(loop) {}
  // Kills it, after `linger` (one that stands still). `label`: its executor's, for the log.
  void add(std::unique_ptr<ExecutorInstance> instance, std::string label, std::chrono::milliseconds linger = {});

 private:
  struct Fading {
    std::unique_ptr<ExecutorInstance> instance;
    std::string label;
    EventLoop::Timer end;
  };
  EventLoop& loop_;
  std::list<Fading> fading_;
};

}  // namespace mpsshim::broker::control
