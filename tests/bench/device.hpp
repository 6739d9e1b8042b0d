// SPDX-License-Identifier: Apache-2.0
// What every task of a worker needs of the driver API: a context, a stream, the kernels, a counter whose value is known. An error ends the
// worker, with the call's name in its slot.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cuda.h>

namespace mpsshim::bench {

// Ends this worker with a reason for the parent. The first form is for the macro.
[[noreturn]] void fail(const std::string& reason);
void check(CUresult result, const char* call);
#define MPSSHIM_CHECK(call) ::mpsshim::bench::check((call), #call)

// The image that all workers share, and the PTX text of one that nobody has seen: its `count` adds, and takes off again, the number.
[[nodiscard]] const void* shared_image();
[[nodiscard]] std::string fresh_image(std::uint64_t number);

struct Device {
  // cuInit, primary context, module, a non-blocking stream, a zeroed counter; one launch, done, unless it is not to be the first.
  Device(std::uint64_t image, bool launches_first);

  void launch_count(unsigned step);
  void launch_in_cluster(unsigned step);  // of two blocks
  void launch_occupy(unsigned blocks, unsigned threads, std::uint64_t duration_ns);
  void synchronize() const { MPSSHIM_CHECK(cuStreamSynchronize(stream)); }
  [[nodiscard]] static bool has_clusters();
  void require_counted() const;  // the counter holds what was launched, else the worker fails

  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction count = nullptr;
  CUfunction count_once = nullptr;  // these four are in the shared image only
  CUfunction occupy = nullptr;
  CUfunction endless = nullptr;
  CUfunction wild_store = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr counter = 0;
  unsigned expected = 0;
};

}  // namespace mpsshim::bench
