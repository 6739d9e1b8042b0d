// SPDX-License-Identifier: Apache-2.0
// The executor process: makes the one context, owns the parts, and serves the control process's messages on its main thread.
// It serves one device. It never outlives a fatal error of the context, nor the control process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "broker/control_messages.hpp"
#include "broker/executor/base/helper_pool.hpp"
#include "broker/executor/context/parts.hpp"
#include "broker/executor/link/control_link.hpp"
#include "broker/executor/link/fault.hpp"
#include "broker/executor/modules/module_store.hpp"
#include "broker/executor/process/executor_main.hpp"
#include "broker/executor/process/fault_watch.hpp"
#include "broker/executor/process/stress_thread.hpp"
#include "broker/executor/window/quiet_window.hpp"
#include "broker/executor/workers/worker_set.hpp"
#include "broker/progress_table.hpp"
#include "proto/segment.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

class Executor {
 public:
  explicit Executor(const ExecutorOptions& options);
  ~Executor();

  // Returns the process's exit code when the control process has said quit or is gone.
  [[nodiscard]] int run();

 private:
  using Restores = std::vector<ReceivedMessage>;  // what a moving session brings along, sent ahead of its SessionOpen

  void publish();
  [[nodiscard]] CUresult load_driver();
  [[nodiscard]] CUresult start();
  [[nodiscard]] CUresult make_context();
  [[nodiscard]] CUresult register_progress();
  [[nodiscard]] SessionCountsFile* map_counts();
  void enlarge_heap();
  void open_assertions();
  void handle(ReceivedMessage& received);
  void check_variables(const Received<message::VariablesCheck>& received);
  void replay(const Received<message::LoadReplay>& received);
  void reserve(const message::CopyReserve& copy);
  void open_session(Received<message::SessionOpen> received);
  [[nodiscard]] CUresult restore(Session& session, Restores& pieces);
  [[nodiscard]] CUresult restore_piece(Session& session, ReceivedMessage& piece);
  void close_session(std::uint64_t session);
  void pause_session(const message::SessionPause& pause);
  // What says that something has ended here: the process may be killed as soon as that is known, and its timeline is to be whole.
  template <typename Message>
  void tell_end(const Message& end) {
    proto::trace::flush();
    link_.send(end);
  }
  void provision_session(const message::SessionProvision& wanted);
  void tell_starved(const QuietWindow::Starving& starving);

  const ExecutorOptions options_;
  ControlLink link_;
  proto::Mapping facts_;
  proto::Mapping progress_memory_;
  proto::Mapping calls_;
  proto::Mapping counts_;
  std::string refusal_;  // why it does not serve, for Ready
  std::unique_ptr<Driver> driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUdeviceptr progress_address_ = 0;
  std::unique_ptr<FaultReporter> faults_;
  std::unique_ptr<QuietWindow> window_;
  std::unique_ptr<Assertions> assertions_;  // ends after the helpers, which use it
  std::unique_ptr<HelperPool> helpers_;
  std::unique_ptr<ModuleStore> modules_;
  std::unique_ptr<ExecutorParts> parts_;
  std::unique_ptr<WorkerSet> workers_;
  std::unique_ptr<FaultWatch> watch_;
  std::unique_ptr<StressThread> stress_;                    // from the first session on
  std::map<std::uint64_t, Restores> restores_;              // by session
};

}  // namespace mpsshim::broker
