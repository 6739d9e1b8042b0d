// SPDX-License-Identifier: Apache-2.0
// Asynchronous notifications (CUDA Driver API manual, cuDeviceRegisterAsyncNotification). The one thing that CUDA notifies of is a budget of
// device memory that a process has exceeded. A client's limit is never exceeded (the allocation fails), so nobody is called: what is
// registered is remembered, and forgotten when it is unregistered.
#include <map>
#include <mutex>

#include "gen/api_declarations.hpp"
#include "interposer/local/devices.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::api {

namespace {

struct Registrations {
  Mutex mutex;
  std::map<std::uintptr_t, CUdevice> device_of GUARDED_BY(mutex);  // by handle
  std::uintptr_t last GUARDED_BY(mutex) = 0;

  [[nodiscard]] static Registrations& instance() {
    static auto* registrations = new Registrations();  // never destroyed
    return *registrations;
  }
};

}  // namespace

CUresult cuDeviceRegisterAsyncNotification(CUdevice device, CUasyncCallback callbackFunc, void*, CUasyncCallbackHandle* callback) {
  if (callbackFunc == nullptr || callback == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device_facts(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  Registrations& registrations = Registrations::instance();
  const std::lock_guard lock(registrations.mutex);
  registrations.device_of.emplace(++registrations.last, device);
  *callback = reinterpret_cast<CUasyncCallbackHandle>(registrations.last);  // NOLINT(performance-no-int-to-ptr)
  return CUDA_SUCCESS;
}

CUresult cuDeviceUnregisterAsyncNotification(CUdevice device, CUasyncCallbackHandle callback) {
  if (device_facts(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  Registrations& registrations = Registrations::instance();
  const std::lock_guard lock(registrations.mutex);
  const auto found = registrations.device_of.find(reinterpret_cast<std::uintptr_t>(callback));
  if (found == registrations.device_of.end() || found->second != device) return CUDA_ERROR_INVALID_VALUE;
  registrations.device_of.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::api
