// SPDX-License-Identifier: Apache-2.0
// The cluster with which a function is launched in chains. A node of a prepared graph has no cluster of its own that could be changed: it takes the
// one that its function has in the driver when it is set to it from an empty kernel, and keeps it for functions that have none
// (docs/experiments/2026-11-26-what-nodes-do-with-clusters.md). So the first launch that is read, of whatever client, settles the function's, and
// one that does not suit it takes it away for good, before it is queued: docs/execution.md, "Clusters".
//
// Owned by the LoadedFunction, which clients share. Any worker asks suits(), without a lock, and may close(). change() and without() are called
// inside QuietWindow::exclusively(): while a worker is inside its gate, or a thread in sharing(), what is_settled_as() answers does not change.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "broker/driver/driver.hpp"

namespace mpsshim::broker {

// Blocks of a cluster, and a CUclusterSchedulingPolicy.
struct ClusterShape {
  std::uint8_t x = 0;
  std::uint8_t y = 0;
  std::uint8_t z = 0;
  std::uint8_t policy = 0;

  [[nodiscard]] bool is_set() const { return x != 0; }
  bool operator==(const ClusterShape&) const = default;
};

// The cluster of a launch that a chain may take: one that any device with clusters can have and the grid is a multiple of, perhaps how clusters are
// spread, and nothing else. Not set: there is none, or no chain takes the launch. `attributes`: `count` CUlaunchAttribute, unaligned.
[[nodiscard]] ClusterShape cluster_for_chain(const std::byte* attributes, std::uint32_t count, const std::uint32_t (&grid)[3]);

class ClusterSetting {
 public:
  ClusterSetting() = default;
  ClusterSetting(const ClusterSetting&) = delete;

  // A launch with this cluster (not set: any other launch) may be queued as things are.
  [[nodiscard]] bool suits(ClusterShape shape) const {
    const std::uint32_t state = state_.load(std::memory_order_acquire);
    return state == kNone || (shape.is_set() && state == packed(shape));
  }
  // Settled without a shape, unless it has one. False: it has.
  bool close() {
    std::uint32_t state = kOpen;
    return state_.compare_exchange_strong(state, kNone, std::memory_order_acq_rel) || state == kNone;
  }
  // Makes it suit such a launch. An error: the driver's function has a shape that cannot be taken away, so the launch would have it as well.
  [[nodiscard]] CUresult change(const Driver& driver, CUfunction function, ClusterShape shape);
  // Launches with this cluster have it of the function.
  [[nodiscard]] bool is_settled_as(ClusterShape shape) const { return shape.is_set() && state_.load(std::memory_order_relaxed) == packed(shape); }

  // The result of `ask`, which calls the driver, while the function has no shape.
  template <typename F>
  [[nodiscard]] CUresult without(const Driver& driver, CUfunction function, F&& ask) {
    const std::uint32_t state = state_.load(std::memory_order_relaxed);
    if (state == kOpen || state == kNone) [[likely]]
      return ask();
    if (const CUresult result = take_away(driver, function); result != CUDA_SUCCESS) return result;
    const CUresult answer = ask();
    const CUresult restored = state == kStuck ? CUDA_SUCCESS : give(driver, function, std::bit_cast<ClusterShape>(state));
    return answer != CUDA_SUCCESS ? answer : restored;
  }

 private:
  // Of states, which are shapes otherwise: no shape has no blocks in one direction.
  static constexpr std::uint32_t kOpen = 0;
  static constexpr std::uint32_t kNone = 1;
  static constexpr std::uint32_t kStuck = 2;  // the driver's function may have some shape, and does not give it up

  [[nodiscard]] static std::uint32_t packed(ClusterShape shape) { return std::bit_cast<std::uint32_t>(shape); }
  [[nodiscard]] static CUresult set(const Driver& driver, CUfunction function, ClusterShape shape);
  // Afterwards the state is the shape, or what take_away() leaves if the driver does not take it.
  [[nodiscard]] CUresult give(const Driver& driver, CUfunction function, ClusterShape shape);
  // Afterwards the state is kNone; with an error, kStuck.
  [[nodiscard]] CUresult take_away(const Driver& driver, CUfunction function);

  std::atomic<std::uint32_t> state_{kOpen};
};

}  // namespace mpsshim::broker
