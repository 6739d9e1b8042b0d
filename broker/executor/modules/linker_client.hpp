// SPDX-License-Identifier: Apache-2.0
// Asks the linker process of a session's user (broker/linker), by way of the control process. Where that cannot compile (a GPU that
// takes one process at a time, and no nvJitLink) it says so, and the driver's linker is asked here. Any thread with the context current; it waits.
#pragma once

#include <atomic>
#include <cstdint>

#include "broker/driver/driver.hpp"
#include "broker/executor/link/fault.hpp"
#include "broker/linker/driver_link.hpp"
#include "broker/linker/link_job.hpp"
#include "broker/linker/link_runner.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class ControlLink;

class LinkerClient {
 public:
  LinkerClient(const Driver& driver, ControlLink& control, const FaultReporter& faults)
      : driver_(driver), control_(control), faults_(faults), library_(driver), here_(library_) {}

  // `image` and `flags`: what is linked, as control_messages.hpp has it for ImageWant; who asks for the same gets the same. Image 0: a linker of the
  // client's. `session` 0: a replay. Where nothing has come of it the error log says why.
  [[nodiscard]] LinkOutcome run(std::uint64_t session, std::uint64_t image, std::uint32_t flags, const LinkRequest& request);

  // Whoever says that it cannot compile, what it was to compile fails.
  void never_here() { may_be_here_.store(false, std::memory_order_relaxed); }

 private:
  [[nodiscard]] bool has_device_alone() const;
  [[nodiscard]] LinkOutcome run_here(std::uint64_t session, const LinkRequest& request);

  const Driver& driver_;
  ControlLink& control_;
  const FaultReporter& faults_;
  // Nobody's word is taken for it on other GPUs than those that take one process at a time, nor once a linker process has compiled something.
  std::atomic<bool> may_be_here_{true};
  std::atomic<bool> is_here_{false};  // the linker process has said that it cannot
  Mutex mutex_;
  const DriverLinkLibrary library_;
  LinkRunner here_;
};

}  // namespace mpsshim::broker
