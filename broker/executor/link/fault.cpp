// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/link/fault.hpp"

#include <atomic>
#include <csignal>
#include <cstdio>

#include <unistd.h>

#include "broker/executor/base/scoped_call.hpp"
#include "broker/executor/link/control_link.hpp"
#include "broker/log.hpp"
#include "broker/seen_end.hpp"

namespace mpsshim::broker {

bool is_fatal(CUresult result) {
  switch (static_cast<int>(result)) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case 721:  // CUDA_ERROR_TENSOR_MEMORY_LEAK, newer than CUDA 12.4
      return true;
    default: return false;
  }
}

void FaultReporter::report_and_stop(CUresult result, std::uint64_t session, const char* call) const {
  static std::atomic_flag reported;
  if (reported.test_and_set()) {
    for (;;) pause();  // another thread reports; the process ends any moment
  }
  const ScopedMark mark(session, "reporting a fault", Patience::patient);  // no longer the call that met it
  if (last_words_) last_words_(result);
  message::Fault fault{.met_by = session, .tick = progress_tick(), .status = static_cast<std::uint32_t>(result)};
  std::snprintf(fault.text, sizeof fault.text, "%s returned %s", call, driver_.describe(result).c_str());
  log_error("The context is lost: {}, met by session {}", fault.text, session);
  control_.send(fault);  // the control process goes on in its Executor::arrived
  raise(SIGSTOP);
  _exit(3);
}

}  // namespace mpsshim::broker
