// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/refusal.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string_view>

#include <unistd.h>

#include "interposer/environment.hpp"
#include "interposer/log.hpp"

namespace mpsshim::interposer {

void tell_absence(const std::string& path, int error, const std::string& elsewhere) {
  if (error == EACCES || error == EPERM) {
    log_line(
        "User %u may not use the broker at %s (%s), and MPSSHIM_REQUIRE is set: start a broker of your own and name its directory in "
        "CUDA_MPS_PIPE_DIRECTORY, or have that one started with --multiuser-server.",
        geteuid(), path.c_str(), std::strerror(error));
    return;
  }
  if (!elsewhere.empty()) {
    log_line(
        "No broker answers at %s (%s), and MPSSHIM_REQUIRE is set; one answers in %s: name that directory in CUDA_MPS_PIPE_DIRECTORY, or name none.",
        path.c_str(), std::strerror(error), elsewhere.c_str());
    return;
  }
  log_line("No broker answers at %s (%s), and MPSSHIM_REQUIRE is set: start mpsbroker, or name its directory in CUDA_MPS_PIPE_DIRECTORY.",
           path.c_str(), std::strerror(error));
}

void tell_elsewhere(const std::string& path, const std::string& elsewhere) {
  log_line(
      "No broker answers at %s, where CUDA_MPS_PIPE_DIRECTORY has it: this program runs without one. One answers in %s: name that directory, or name "
      "none.",
      path.c_str(), elsewhere.c_str());
}

void tell_refusal(const std::string& path, CUresult status, uid_t owner) {
  if (status == CUDA_ERROR_MPS_SERVER_NOT_READY) {
    log_line(
        "The broker at %s has no executor that is ready (CUresult %d): its log says why; start it again when that is mended, and then this "
        "program. MPSSHIM_DISABLE=1 runs without it.",
        path.c_str(), static_cast<int>(status));
  } else if (status == CUDA_ERROR_MPS_CONNECTION_FAILED && owner != geteuid()) {
    log_line(
        "The broker at %s serves user %u alone, not user %u (CUresult %d): start a broker of your own and name its directory in "
        "CUDA_MPS_PIPE_DIRECTORY, or have that one started with --multiuser-server.",
        path.c_str(), owner, geteuid(), static_cast<int>(status));
  } else {
    log_line("The broker at %s refuses this process (CUresult %d): its log says why; MPSSHIM_DISABLE=1 runs without it.", path.c_str(),
             static_cast<int>(status));
  }
}

void tell_no_session(CUresult status) {
  static std::atomic<CUresult> told{CUDA_SUCCESS};
  if (told.exchange(status, std::memory_order_relaxed) == status) return;
  if (status == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED) {
    log_line(
        "The broker serves as many clients as it may (CUresult %d): start this program again when one has ended (`mpsctl ps` lists them), or the "
        "broker with a larger --max-clients.",
        static_cast<int>(status));
  } else if (status == CUDA_ERROR_MPS_SERVER_NOT_READY) {
    log_line(
        "The broker takes no new client now (CUresult %d): it is stopping, or its executor is not ready; its log says which. Start this program "
        "again when a broker serves (`mpsctl get_server_list` lists its executors).",
        static_cast<int>(status));
  } else if (status == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION) {
    const std::string_view named = environment_value(Variable::sm_partition);
    log_line(
        "The broker has static partitions of the multiprocessors alone, and CUDA_MPS_SM_PARTITION (\"%.*s\") names none that there is on this device "
        "(CUresult %d): `mpsctl lspart` lists them, `mpsctl sm_partition add` makes one.",
        static_cast<int>(std::min<std::size_t>(named.size(), 200)), named.data(), static_cast<int>(status));
  } else {
    log_line("The broker opens no session for this process (CUresult %d): its log says why; MPSSHIM_DISABLE=1 runs without it.",
             static_cast<int>(status));
  }
}

}  // namespace mpsshim::interposer
