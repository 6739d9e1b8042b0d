// SPDX-License-Identifier: Apache-2.0
// Tasks that allocate and copy.
#include "tests/bench/tasks.hpp"

namespace mpsshim::bench {

namespace {

// Host memory of either kind, touched, with content that follows from the seed.
class HostBuffer {
 public:
  HostBuffer(std::size_t bytes, bool is_pinned, std::uint32_t seed) : words_(bytes / sizeof(std::uint32_t)), is_pinned_(is_pinned) {
    if (is_pinned_) {
      MPSSHIM_CHECK(cuMemHostAlloc(&memory_, bytes, 0));
    } else {
      memory_ = ::operator new(bytes);
    }
    for (std::size_t i = 0; i < words_; ++i) data()[i] = content(i, seed);
  }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer() {
    if (is_pinned_) {
      MPSSHIM_CHECK(cuMemFreeHost(memory_));
    } else {
      ::operator delete(memory_);
    }
  }
  [[nodiscard]] std::uint32_t* data() { return static_cast<std::uint32_t*>(memory_); }
  // Every page is looked at, not every word: a gigabyte takes long enough as it is.
  void require_content(std::uint32_t seed) {
    for (std::size_t i = 0; i < words_; i += 61) {
      if (data()[i] != content(i, seed)) fail("wrong result: word " + std::to_string(i) + " of a copied buffer is not what was sent");
    }
  }

 private:
  static std::uint32_t content(std::size_t i, std::uint32_t seed) { return static_cast<std::uint32_t>(i) * 2654435761u + seed; }
  void* memory_ = nullptr;
  std::size_t words_;
  bool is_pinned_;
};

void copy(CUdeviceptr memory, HostBuffer& host, std::size_t bytes, bool is_to_host) {
  if (is_to_host) {
    MPSSHIM_CHECK(cuMemcpyDtoH(host.data(), memory, bytes));
  } else {
    MPSSHIM_CHECK(cuMemcpyHtoD(memory, host.data(), bytes));
  }
}

// The content goes to the device and comes back, one of the ways by the copy that is measured.
template <typename Measured>
void round_trip(const Order& order, Measured measured) {
  const auto bytes = static_cast<std::size_t>(order.argument[0]);
  const bool is_to_host = order.argument[1] != 0;
  CUdeviceptr memory = 0;
  MPSSHIM_CHECK(cuMemAlloc(&memory, bytes));
  HostBuffer measured_side(bytes, order.argument[2] != 0, is_to_host ? 1 : 2);
  {
    HostBuffer other_side(bytes, order.argument[2] != 0, is_to_host ? 2 : 1);
    if (is_to_host) copy(memory, other_side, bytes, false);
    measured(memory, measured_side, bytes, is_to_host);
    if (!is_to_host) copy(memory, other_side, bytes, true);
    (is_to_host ? measured_side : other_side).require_content(2);
  }
  MPSSHIM_CHECK(cuMemFree(memory));
}

}  // namespace

void allocate(Work& work) {
  const auto bytes = static_cast<std::size_t>(work.order.argument[0]);
  std::vector<double> samples;
  samples.reserve(1 << 20);
  while (work.is_time_left()) {
    CUdeviceptr memory = 0;
    const Clock::time_point start = Clock::now();
    MPSSHIM_CHECK(cuMemAlloc(&memory, bytes));
    MPSSHIM_CHECK(cuMemFree(memory));
    samples.push_back(microseconds_since(start));
    work.outcome.done += 1;
  }
  work.outcome.last_ns = now_ns();
  summarize(samples, work.outcome);
}

void copy_small(Work& work) {
  round_trip(work.order, [&work](CUdeviceptr memory, HostBuffer& host, std::size_t bytes, bool is_to_host) {
    std::vector<double> samples;
    samples.reserve(1 << 18);
    do {
      const Clock::time_point start = Clock::now();
      copy(memory, host, bytes, is_to_host);
      samples.push_back(microseconds_since(start));
      work.outcome.done += 1;
    } while (work.is_time_left());
    work.outcome.last_ns = now_ns();
    summarize(samples, work.outcome);
  });
}

// A copy before it that does not count: what is set up at the first one is not a rate.
void copy_large(Work& work) {
  round_trip(work.order, [&work](CUdeviceptr memory, HostBuffer& host, std::size_t bytes, bool is_to_host) {
    copy(memory, host, bytes, is_to_host);
    for (double& piece_us : work.outcome.piece_us) {
      const Clock::time_point start = Clock::now();
      copy(memory, host, bytes, is_to_host);
      piece_us = microseconds_since(start);
      work.outcome.done += 1;
    }
    work.outcome.last_ns = now_ns();
  });
}

}  // namespace mpsshim::bench
