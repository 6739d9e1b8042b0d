// SPDX-License-Identifier: Apache-2.0
// Which launches a chain takes with their cluster, and what their function's becomes (with streams and graphs: tests/wire/clusters.cpp).
#include "broker/executor/modules/cluster_setting.hpp"

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "tests/support/catch.hpp"

using namespace mpsshim::broker;

namespace {

// The driver's function.
std::map<CUfunction_attribute, int> set_in_driver;
std::function<void()> while_set;
CUresult policy_result = CUDA_SUCCESS;

CUresult set_cluster(CUfunction, CUfunction_attribute attribute, int value) {
  if (attribute == CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE && policy_result != CUDA_SUCCESS) return policy_result;
  set_in_driver[attribute] = value;
  if (while_set) while_set();
  return CUDA_SUCCESS;
}

struct ClusterScene {
  std::unique_ptr<Driver> owned;
  ClusterSetting setting;

  ClusterScene() {
    mpsshim::DriverTable table{};
    table.cuFuncSetAttribute = set_cluster;
    owned = Driver::from_table(table);
    set_in_driver.clear();
    while_set = nullptr;
    policy_result = CUDA_SUCCESS;
  }
  CUresult change(ClusterShape shape) { return setting.change(*owned, nullptr, shape); }
  static ClusterShape in_driver() {
    return {static_cast<std::uint8_t>(set_in_driver[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH]),
            static_cast<std::uint8_t>(set_in_driver[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT]),
            static_cast<std::uint8_t>(set_in_driver[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH]),
            static_cast<std::uint8_t>(set_in_driver[CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE])};
  }
};

CUlaunchAttribute in_cluster(unsigned x, unsigned y, unsigned z) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {x, y, z};
  return attribute;
}
CUlaunchAttribute spread_by(int value) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
  attribute.value.clusterSchedulingPolicyPreference = static_cast<CUclusterSchedulingPolicy>(value);
  return attribute;
}
CUlaunchAttribute attribute_of_kind(CUlaunchAttributeID id) {
  CUlaunchAttribute attribute{};
  attribute.id = id;
  return attribute;
}

ClusterShape shape_of(const std::vector<CUlaunchAttribute>& attributes) {
  constexpr std::uint32_t kGrid[3] = {48, 16, 8};
  return cluster_for_chain(reinterpret_cast<const std::byte*>(attributes.data()), static_cast<std::uint32_t>(attributes.size()), kGrid);
}

constexpr ClusterShape kTwoBlocks{2, 1, 1, 0};

}  // namespace

TEST_CASE("a chain takes a launch with a cluster that any device has, perhaps with how it is spread") {
  CHECK(shape_of({in_cluster(4, 2, 1)}) == ClusterShape{4, 2, 1, 0});
  CHECK(shape_of({spread_by(1), attribute_of_kind(CU_LAUNCH_ATTRIBUTE_IGNORE), in_cluster(1, 1, 8)}) == ClusterShape{1, 1, 8, 1});
  CHECK(shape_of({in_cluster(1, 1, 1)}).is_set());
}

TEST_CASE("a chain takes no launch with attributes beside its cluster, or with a cluster that the driver may refuse") {
  CHECK_FALSE(shape_of({}).is_set());
  CHECK_FALSE(shape_of({spread_by(1)}).is_set());
  for (const CUlaunchAttributeID id : {CU_LAUNCH_ATTRIBUTE_PRIORITY, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
                                       CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION}) {
    CHECK_FALSE(shape_of({in_cluster(2, 1, 1), attribute_of_kind(id)}).is_set());
  }
  CHECK_FALSE(shape_of({in_cluster(2, 1, 1), in_cluster(2, 1, 1)}).is_set());
  CHECK_FALSE(shape_of({in_cluster(2, 1, 1), spread_by(3)}).is_set());
  CHECK_FALSE(shape_of({in_cluster(2, 1, 1), spread_by(-1)}).is_set());
  CHECK_FALSE(shape_of({in_cluster(0, 1, 1)}).is_set());
  CHECK_FALSE(shape_of({in_cluster(2, 0, 1)}).is_set());
  CHECK_FALSE(shape_of({in_cluster(16, 1, 1)}).is_set());
  CHECK_FALSE(shape_of({in_cluster(4, 4, 1)}).is_set());
  CHECK_FALSE(shape_of({in_cluster(258, 1, 1)}).is_set());
  CHECK_FALSE(shape_of({in_cluster(0x80000001, 2, 1)}).is_set());
  CHECK_FALSE(shape_of({in_cluster(5, 1, 1)}).is_set());  // the grid is no multiple
  CHECK_FALSE(shape_of({in_cluster(1, 3, 1)}).is_set());
}

TEST_CASE("the driver's function has a cluster as long as all launches suit it") {
  ClusterScene f;
  CHECK_FALSE(f.setting.suits(kTwoBlocks));
  CHECK_FALSE(f.setting.suits({}));
  CHECK(f.change({2, 1, 1, 1}) == CUDA_SUCCESS);
  CHECK(f.in_driver() == ClusterShape{2, 1, 1, 1});
  CHECK(f.setting.suits({2, 1, 1, 1}));
  CHECK_FALSE(f.setting.suits(kTwoBlocks));
  CHECK_FALSE(f.setting.suits({}));
  CHECK_FALSE(f.setting.close());
  CHECK(f.change(kTwoBlocks) == CUDA_SUCCESS);
  CHECK(f.in_driver() == ClusterShape{});
  for (const ClusterShape shape : {kTwoBlocks, ClusterShape{2, 1, 1, 1}, ClusterShape{}}) {
    CHECK(f.setting.suits(shape));
    CHECK_FALSE(f.setting.is_settled_as(shape));
  }
  set_in_driver.clear();
  CHECK(f.change(kTwoBlocks) == CUDA_SUCCESS);
  CHECK(set_in_driver.empty());
}

TEST_CASE("a driver that does not take how a function's clusters are to be spread takes the cluster all the same") {
  ClusterScene f;
  policy_result = CUDA_ERROR_INVALID_VALUE;
  CHECK(f.change({2, 1, 1, 1}) == CUDA_SUCCESS);
  CHECK(f.in_driver() == kTwoBlocks);
  CHECK(f.setting.is_settled_as({2, 1, 1, 1}));
  CHECK(f.change({}) == CUDA_SUCCESS);
  CHECK(f.in_driver() == ClusterShape{});
}

TEST_CASE("a plain launch that is read while a function gets its cluster takes it away again") {
  ClusterScene f;
  bool was_first = false;
  while_set = [&] { was_first |= f.setting.close(); };
  CHECK(f.change(kTwoBlocks) == CUDA_SUCCESS);
  CHECK(was_first);
  CHECK(f.in_driver() == ClusterShape{});
  CHECK_FALSE(f.setting.is_settled_as(kTwoBlocks));
  CHECK(f.setting.suits({}));
}

TEST_CASE("a question is asked while the function has no cluster, which comes back") {
  ClusterScene f;
  ClusterShape seen = kTwoBlocks;
  const auto ask = [&] { return seen = f.in_driver(), CUDA_ERROR_NOT_FOUND; };
  CHECK(f.setting.without(*f.owned, nullptr, ask) == CUDA_ERROR_NOT_FOUND);
  CHECK(set_in_driver.size() == 4);  // what in_driver() looked for: nothing was set
  CHECK(f.change(kTwoBlocks) == CUDA_SUCCESS);
  CHECK(f.setting.without(*f.owned, nullptr, ask) == CUDA_ERROR_NOT_FOUND);
  CHECK(seen == ClusterShape{});
  CHECK(f.in_driver() == kTwoBlocks);
  CHECK(f.setting.is_settled_as(kTwoBlocks));
}
