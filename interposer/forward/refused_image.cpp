// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/refused_image.hpp"

#include <cstddef>
#include <mutex>
#include <set>

#include "interposer/forward/begin.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/log.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::size_t kMostReasons = 32;  // a program that tries image after image fills no terminal

// The image is in order, and the device is not one for it.
bool is_refusal(CUresult error) {
  switch (static_cast<int>(error)) {
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION: return true;
    default: return false;
  }
}

bool is_on_cpu_driver() {
  const proto::DeviceFacts* facts = device_facts(session_device());
  return facts != nullptr && facts->is_cpu_device != 0;
}

bool is_new(const std::string& why) {
  static auto* mutex = new Mutex();
  static auto* told = new std::set<std::string>();
  const std::lock_guard lock(*mutex);
  return told->size() < kMostReasons && told->insert(why).second;
}

void tell(CUresult error, const std::string& why) {
  const std::string reason = why.empty() ? "it holds no code for this device" : why;
  if (!is_new(reason)) return;
  log_line("An image cannot run on the CPU driver (error %d): %s", static_cast<int>(error), reason.c_str());
}

}  // namespace

CUresult refused_module(CUresult error, const std::string& why) {
  if (is_refusal(error) && is_on_cpu_driver()) tell(error, why);
  return error;
}

CUresult refused_library(CUresult error, const std::string& why) {
  if (!is_refusal(error) || !is_on_cpu_driver()) return error;
  tell(error, why);
  log_line("A kernel of this program cannot run, so none of its results would be right: every later CUDA call gives error %d, too.",
           static_cast<int>(error));
  return session().give_up(error);
}

}  // namespace mpsshim::interposer::forward
