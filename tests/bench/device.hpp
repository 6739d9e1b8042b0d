// SPDX-License-Identifier: Apache-2.0
// What every measure of mpsbench needs of the driver API: a context, a stream, the two kernels. Errors end the process with the call's name.
#pragma once

#include <chrono>
#include <vector>

#include <cuda.h>

namespace mpsshim::bench {

using Clock = std::chrono::steady_clock;
inline double microseconds_since(Clock::time_point start) { return std::chrono::duration<double, std::micro>(Clock::now() - start).count(); }
[[nodiscard]] double median(std::vector<double> values);

void check(CUresult result, const char* call);
#define MPSSHIM_CHECK(call) ::mpsshim::bench::check((call), #call)

struct Device {
  Device();  // cuInit, primary context, module, a non-blocking stream, a zeroed counter
  void launch_count(unsigned step) const;
  void synchronize() const { MPSSHIM_CHECK(cuStreamSynchronize(stream)); }
  [[nodiscard]] unsigned counter_value() const;

  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction count = nullptr;
  CUfunction wild_store = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr counter = 0;
};

}  // namespace mpsshim::bench
