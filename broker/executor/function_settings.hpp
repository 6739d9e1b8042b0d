// SPDX-License-Identifier: Apache-2.0
// What clients set on a function (cuFuncSetAttribute), where several share the driver's. Nobody's launch may be refused, and nobody's question be
// answered otherwise, for what another client has set: limits only grow, each client keeps to its own (interposer/forward/functions.hpp), and
// what occupancy depends on besides is as the asker has set it while the driver reckons.
//
// Any thread. A client's launches may run under another's carve-out: it is a preference, of which results do not depend.
#pragma once

#include <mutex>

#include "broker/driver/driver.hpp"

namespace mpsshim::broker {

inline constexpr int kDefaultCarveOut = -1;  // percent of the most shared memory there can be, or this: the driver chooses

class FunctionSettings {
 public:
  FunctionSettings() = default;
  FunctionSettings(const FunctionSettings&) = delete;

  // As cuFuncSetAttribute, with its errors.
  [[nodiscard]] CUresult set(const Driver& driver, CUfunction function, CUfunction_attribute attribute, int value);

  // The result of `ask`, which calls the driver, while the function has this carve-out.
  template <typename F>
  [[nodiscard]] CUresult with_carve_out(const Driver& driver, CUfunction function, int carve_out, F&& ask) {
    const std::lock_guard lock(mutex_);
    const int before = carve_out_;
    if (const CUresult result = prefer(driver, function, carve_out); result != CUDA_SUCCESS) return result;
    const CUresult answer = ask();
    const CUresult restored = prefer(driver, function, before);
    return answer != CUDA_SUCCESS ? answer : restored;
  }

 private:
  // With mutex_ held.
  [[nodiscard]] CUresult raise_shared_memory_limit(const Driver& driver, CUfunction function, int bytes);
  [[nodiscard]] CUresult prefer(const Driver& driver, CUfunction function, int carve_out);

  std::mutex mutex_;
  int carve_out_ = kDefaultCarveOut;  // the driver's, at the moment
};

}  // namespace mpsshim::broker
