// SPDX-License-Identifier: Apache-2.0
// What clients set on a function (cuFuncSetAttribute), where several share the driver's. Nobody's launch may be refused, and nobody's question be
// answered otherwise, for what another client has set: limits only grow, each client keeps to its own (interposer/forward/functions.hpp), and
// what occupancy depends on besides is as the asker has set it while the driver reckons.
//
// Used inside QuietWindow::exclusively(), so by one thread, while nobody launches. A client's launches may run under another's carve-out: it is a
// preference, of which results do not depend.
#pragma once

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
    const int before = carve_out_;
    if (const CUresult result = prefer(driver, function, carve_out); result != CUDA_SUCCESS) return result;
    const CUresult answer = ask();
    const CUresult restored = prefer(driver, function, before);
    return answer != CUDA_SUCCESS ? answer : restored;
  }

 private:
  [[nodiscard]] static CUresult raise_shared_memory_limit(const Driver& driver, CUfunction function, int bytes);
  [[nodiscard]] CUresult allow_large_clusters(const Driver& driver, CUfunction function, int value);
  [[nodiscard]] CUresult prefer(const Driver& driver, CUfunction function, int carve_out);

  int carve_out_ = kDefaultCarveOut;  // the driver's, at the moment
  bool allows_large_clusters_ = false;
};

}  // namespace mpsshim::broker
