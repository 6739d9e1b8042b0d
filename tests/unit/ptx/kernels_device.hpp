// SPDX-License-Identifier: Apache-2.0
// A device with the kernels of kernels.cu, as nvcc has compiled them for sm_75 and sm_90, on either set of handlers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include "tests/unit/ptx/test_device.hpp"

namespace mpsshim::ptx::test {

struct Variant {
  const char* path;
  bool use_baseline;
};
inline const Variant kVariants[] = {{MPSSHIM_TEST_PTX_75, false}, {MPSSHIM_TEST_PTX_90, false}, {MPSSHIM_TEST_PTX_75, true}};

class Kernels : public TestDevice {
 public:
  explicit Kernels(const Variant& variant) : TestDevice({.thread_count = 2, .use_baseline_isa = variant.use_baseline}) {
    load({read_text(variant.path)});
  }
};

template <class Body>
void on_each_variant(Body body) {
  for (const Variant& variant : kVariants) {
    INFO(variant.path << (variant.use_baseline ? " baseline" : " best"));
    Kernels device(variant);
    body(device);
  }
}

inline std::vector<float> random_floats(std::size_t count, float low = -4, float high = 4) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> values(low, high);
  std::vector<float> result(count);
  for (float& v : result) v = values(generator);
  return result;
}

template <class T>
Buffer<T> buffer_of(TestMemory& memory, const std::vector<T>& values) {
  Buffer<T> buffer(memory, values.size());
  std::copy(values.begin(), values.end(), buffer.data());
  return buffer;
}

}  // namespace mpsshim::ptx::test
