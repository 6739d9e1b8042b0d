// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/linker_client.hpp"

#include <utility>

#include "broker/executor/base/scoped_call.hpp"
#include "broker/executor/link/control_link.hpp"
#include "broker/linker/link_file.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

// The control process answers in any case; other jobs of the user may have to be done first, of which each has a limit.
constexpr unsigned kLinkTimeoutMs = 900'000;

LinkOutcome failed(CUresult status, std::string why) {
  LinkOutcome outcome;
  outcome.end = LinkOutcome::End::failed;
  outcome.status = status;
  outcome.error_log = std::move(why);
  return outcome;
}

}  // namespace

LinkOutcome LinkerClient::run(std::uint64_t session, std::uint64_t image, std::uint32_t flags, const LinkRequest& request) {
  if (is_here_.load(std::memory_order_relaxed)) return run_here(session, request);
  const proto::FileDescriptor file = write_request(request);
  if (!file.valid()) return failed(CUDA_ERROR_OUT_OF_MEMORY, "there is no memory for what is to be linked");
  ControlLink::FetchedImage answer = control_.link(session, image, flags, file, kLinkTimeoutMs);
  if (answer.status != CUDA_SUCCESS) return failed(answer.status, std::move(answer.log));
  if (!answer.prepared.valid()) return run_here(session, request);
  LinkOutcome outcome;
  // An error of the other process's context is not one of this.
  if (!read_outcome(answer.prepared, outcome) || is_fatal(outcome.status)) {
    return failed(CUDA_ERROR_INVALID_PTX, "what the process that links images has made of it is not understood");
  }
  if (outcome.end == LinkOutcome::End::done && outcome.status == CUDA_SUCCESS) never_here();
  if (outcome.end == LinkOutcome::End::not_there && may_be_here_.load(std::memory_order_relaxed) && has_device_alone()) {
    if (!is_here_.exchange(true)) log_info("PTX is compiled in this executor, which a text that crashes the compiler ends: {}", outcome.error_log);
    return run_here(session, request);
  }
  if (outcome.end != LinkOutcome::End::done && outcome.end != LinkOutcome::End::unknown) {
    log_warning("Session {}: nothing can be linked ({}). {}", session, driver_.describe(outcome.status), outcome.error_log);
  }
  return outcome;
}

bool LinkerClient::has_device_alone() const {
  CUdevice device = 0;
  int mode = CU_COMPUTEMODE_DEFAULT;
  if (driver_->cuCtxGetDevice(&device) != CUDA_SUCCESS) return false;
  return driver_->cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device) == CUDA_SUCCESS && mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
}

LinkOutcome LinkerClient::run_here(std::uint64_t session, const LinkRequest& request) {
  const ScopedMark mark(session, "compiling an image", Patience::patient);
  const std::lock_guard lock(mutex_);
  LinkOutcome outcome = here_.run(request);
  faults_.check(outcome.status, session, "cuLinkComplete");
  return outcome;
}

}  // namespace mpsshim::broker
