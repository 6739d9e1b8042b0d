// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/cluster_setting.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mpsshim::broker {

namespace {

constexpr unsigned kMostBlocks = 8;  // in a cluster of any device; more have to be allowed, and then go out singly

bool is_multiple(const std::uint32_t (&grid)[3], const unsigned (&blocks)[3]) {
  return grid[0] % blocks[0] == 0 && grid[1] % blocks[1] == 0 && grid[2] % blocks[2] == 0;
}

}  // namespace

ClusterShape cluster_for_chain(const std::byte* attributes, std::uint32_t count, const std::uint32_t (&grid)[3]) {
  ClusterShape shape;
  for (std::uint32_t i = 0; i < count; ++i) {
    CUlaunchAttribute attribute;
    std::memcpy(&attribute, attributes + i * sizeof attribute, sizeof attribute);
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_IGNORE) continue;
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE) {
      const auto policy = static_cast<unsigned>(attribute.value.clusterSchedulingPolicyPreference);
      if (policy > CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING) return {};
      shape.policy = static_cast<std::uint8_t>(policy);
      continue;
    }
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return {};
    const unsigned blocks[3] = {attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z};
    const auto is_possible = [](unsigned size) { return size > 0 && size <= kMostBlocks; };
    if (shape.is_set() || !std::ranges::all_of(blocks, is_possible)) return {};
    if (blocks[0] * blocks[1] * blocks[2] > kMostBlocks || !is_multiple(grid, blocks)) return {};
    shape.x = static_cast<std::uint8_t>(blocks[0]);
    shape.y = static_cast<std::uint8_t>(blocks[1]);
    shape.z = static_cast<std::uint8_t>(blocks[2]);
  }
  return shape.is_set() ? shape : ClusterShape{};
}

CUresult ClusterSetting::change(const Driver& driver, CUfunction function, ClusterShape shape) {
  const std::uint32_t state = state_.load(std::memory_order_relaxed);
  if (suits(shape)) return CUDA_SUCCESS;  // somebody else was first
  if (state != kOpen) return take_away(driver, function);
  if (!shape.is_set()) return close(), CUDA_SUCCESS;
  // A driver that does not take the shape, of a function of this kind, leaves launches with clusters as they were.
  if (set(driver, function, shape) != CUDA_SUCCESS) return take_away(driver, function);
  std::uint32_t open = kOpen;
  if (state_.compare_exchange_strong(open, packed(shape), std::memory_order_acq_rel)) return CUDA_SUCCESS;
  return take_away(driver, function);  // closed meanwhile, by who has read a plain launch
}

CUresult ClusterSetting::set(const Driver& driver, CUfunction function, ClusterShape shape) {
  const std::pair<CUfunction_attribute, int> settings[] = {{CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, shape.x},
                                                           {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, shape.y},
                                                           {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, shape.z}};
  for (const auto& [attribute, value] : settings) {
    if (const CUresult result = driver->cuFuncSetAttribute(function, attribute, value); result != CUDA_SUCCESS) return result;
  }
  // A preference, of which no result depends: a driver that does not take it for this function is none that does not take the cluster.
  (void)driver->cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, shape.policy);
  return CUDA_SUCCESS;
}

CUresult ClusterSetting::give(const Driver& driver, CUfunction function, ClusterShape shape) {
  if (set(driver, function, shape) != CUDA_SUCCESS) return take_away(driver, function);
  state_.store(packed(shape), std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult ClusterSetting::take_away(const Driver& driver, CUfunction function) {
  const CUresult result = set(driver, function, {});
  state_.store(result == CUDA_SUCCESS ? kNone : kStuck, std::memory_order_release);
  return result;
}

}  // namespace mpsshim::broker
