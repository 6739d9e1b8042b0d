// SPDX-License-Identifier: Apache-2.0
// Launches in clusters, one behind the other with launches that have none: each kernel adds the cluster that it finds itself in to what the ones
// before it have left. Needs a device of compute capability 9.0.
#include <array>
#include <random>
#include <string>
#include <vector>

#include "graph_calls.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

namespace {

using Cluster = std::array<unsigned, 3>;
constexpr Cluster kNone{};
constexpr Cluster kTwo{2, 1, 1};
constexpr Cluster kFour{4, 1, 1};
constexpr Cluster kTall{2, 2, 1};
constexpr unsigned kGrid = 8;  // in two directions: a multiple of all these

constexpr char kBody[] = R"((.param .u64 cell, .param .u32 salt) $
{
  .reg .pred %p;
  .reg .u64 %rd<2>;
  .reg .u32 %r<8>;
  barrier.cluster.arrive;
  barrier.cluster.wait;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ctaid.y;
  or.b32 %r1, %r1, %r2;
  setp.ne.u32 %p, %r1, 0;
  @%p bra END;
  ld.param.u64 %rd1, [cell];
  ld.param.u32 %r3, [salt];
  mov.u32 %r4, %cluster_nctaid.x;
  mov.u32 %r5, %cluster_nctaid.y;
  mad.lo.u32 %r3, %r4, 256, %r3;
  mad.lo.u32 %r3, %r5, 65536, %r3;
  ld.global.u32 %r6, [%rd1];
  mad.lo.u32 %r6, %r6, 3, %r3;
  st.global.u32 [%rd1], %r6;
END:
  ret;
}
)";

// The same kernel under several names, so that places in a run change their functions; `fixed` has its cluster in the image.
std::string image_text() {
  std::string text = ".version 7.8\n.target sm_90\n.address_size 64\n";
  for (const char* name : {"first", "second", "third", "fourth", "fixed"}) {
    std::string body = kBody;
    body.replace(body.find('$'), 1, std::string(name) == "fixed" ? ".reqnctapercluster 2, 1, 1" : "");
    text += ".visible .entry " + std::string(name) + body;
  }
  return text;
}

unsigned step(unsigned value, unsigned salt, Cluster cluster) {
  if (cluster == kNone) cluster = {1, 1, 1};
  return value * 3 + salt + 256 * cluster[0] + 65536 * cluster[1];
}

CUlaunchAttribute attribute_of(Cluster cluster) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {cluster[0], cluster[1], cluster[2]};
  return attribute;
}

// A stream with a cell that its kernels change, and what the cell has to hold.
struct Lane {
  CUstream stream = new_stream();
  DeviceArray<unsigned> cell{1};
  unsigned expected = 0;
  unsigned salt = 0;

  ~Lane() { CU(cuStreamDestroy)(stream); }
  CUresult launch(CUfunction function, Cluster cluster, bool with_policy = false) {
    CUdeviceptr address = cell.address();
    unsigned next = ++salt % 200;
    void* arguments[] = {&address, &next};
    if (cluster == kNone) return CU(cuLaunchKernel)(function, kGrid, kGrid, 1, 1, 1, 1, 0, stream, arguments, nullptr);
    CUlaunchAttribute attributes[2] = {attribute_of(cluster)};
    attributes[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
    attributes[1].value.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_DEFAULT;
    const CUlaunchConfig config{kGrid, kGrid, 1, 1, 1, 1, 0, stream, attributes, with_policy ? 2u : 1u};
    return CU(cuLaunchKernelEx)(&config, function, arguments, nullptr);
  }
  void post(CUfunction function, Cluster cluster, Cluster found) {
    OK(launch(function, cluster, salt % 3 == 0));
    expected = step(expected, salt % 200, found);
  }
  void post(CUfunction function, Cluster cluster) { post(function, cluster, cluster); }
  void check() const {
    OK(CU(cuStreamSynchronize)(stream));
    REQUIRE(cell[0] == expected);
  }
};

int width_of(CUfunction function) {
  int width = -1;
  OK(CU(cuFuncGetAttribute)(&width, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, function));
  return width;
}

bool has_clusters() {
  int has_clusters = 0;
  OK(CU(cuDeviceGetAttribute)(&has_clusters, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 0));
  return has_clusters != 0 && !is_cpu_device();
}

}  // namespace

#define NEEDS_CLUSTERS()                                               \
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no clusters"); \
  const DeviceContext context;                                         \
  if (!has_clusters()) MPSSHIM_SKIP("the device has no clusters");     \
  const LoadedImage image(image_text(), LoadedImage::Content{})

TEST_CASE("launches in clusters are in their place among launches without", "[forwarded]") {
  NEEDS_CLUSTERS();
  const CUfunction plain = image.function("first"), product = image.function("second"), other = image.function("third");
  Lane lane;
  for (unsigned round = 0; round < 300; ++round) {
    const unsigned length = 1 + round % 23;
    for (unsigned i = 0; i < length; ++i) {
      lane.post(plain, kNone);
      if (i % 2 == 0) lane.post(product, kTwo);
      if (i % 5 == 0) lane.post(other, kTall);
    }
    if (round % 4 != 0) lane.check();
  }
  lane.check();
  CHECK(width_of(product) == 0);  // it was set on launches, not on the function
}

TEST_CASE("a function launched in several clusters, and without one, has at each launch what that says", "[forwarded]") {
  NEEDS_CLUSTERS();
  const CUfunction functions[] = {image.function("first"), image.function("second"), image.function("third"), image.function("fourth")};
  constexpr Cluster kClusters[] = {kNone, kTwo, kFour, kTall};
  std::array<Lane, 3> lanes;
  std::mt19937 random(7);
  // At first each function has a cluster of its own, then any.
  for (unsigned i = 0; i < 6'000; ++i) {
    Lane& lane = lanes[random() % lanes.size()];
    const unsigned which = random() % 4;
    const unsigned changes = i < 2'000 ? 0 : i < 4'000 ? random() % 50 == 0 : random() % 2;
    lane.post(functions[which], kClusters[changes != 0 ? random() % 4 : which]);
    if (random() % 40 == 0) lane.check();
  }
  for (const Lane& lane : lanes) lane.check();
}

TEST_CASE("clusters of launches leave a function's attributes and occupancy as they were", "[forwarded]") {
  NEEDS_CLUSTERS();
  const CUfunction function = image.function("first");
  const auto ask = [&] {
    std::vector<int> answers;
    int value = 0;
    for (const Cluster cluster : {kTwo, kFour}) {
      CUlaunchAttribute attribute = attribute_of(cluster);
      const CUlaunchConfig config{kGrid, kGrid, 1, 32, 1, 1, 0, nullptr, &attribute, 1};
      OK(CU(cuOccupancyMaxActiveClusters)(&value, function, &config));
      answers.push_back(value);
    }
    const CUlaunchConfig config{kGrid, kGrid, 1, 32, 1, 1, 0, nullptr, nullptr, 0};
    OK(CU(cuOccupancyMaxPotentialClusterSize)(&value, function, &config));
    answers.push_back(value);
    OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&value, function, 32, 0));
    answers.push_back(value);
    answers.push_back(width_of(function));
    return answers;
  };
  const std::vector<int> before = ask();
  Lane lane;
  for (unsigned i = 0; i < 20; ++i) {
    lane.post(function, kTwo);
    CHECK(ask() == before);
  }
  lane.check();
  // What is set on the function goes with launches that name none; one that names another is refused.
  const auto set = [&](Cluster cluster) {
    OK(CU(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, static_cast<int>(cluster[0])));
    OK(CU(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, static_cast<int>(cluster[1])));
    OK(CU(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, static_cast<int>(cluster[2])));
  };
  set(kFour);
  CHECK(width_of(function) == 4);
  for (unsigned i = 0; i < 10; ++i) lane.post(function, kNone, kFour);
  lane.check();
  CHECK(lane.launch(function, kTwo) == CUDA_ERROR_INVALID_CLUSTER_SIZE);
  set(kNone);
  CHECK(width_of(function) == 0);
  for (unsigned i = 0; i < 10; ++i) {
    lane.post(function, kNone);
    lane.post(function, kTwo);
  }
  lane.check();
}

TEST_CASE("a kernel whose cluster is in its image has it wherever it is launched", "[forwarded]") {
  NEEDS_CLUSTERS();
  const CUfunction fixed = image.function("fixed"), plain = image.function("first"), product = image.function("second");
  CHECK(width_of(fixed) == 2);
  Lane lane;
  for (unsigned i = 0; i < 200; ++i) {
    lane.post(i % 3 == 0 ? plain : fixed, kNone, i % 3 == 0 ? kNone : kTwo);
    lane.post(product, kFour);
    if (i % 7 == 0) lane.check();
  }
  lane.check();
}

TEST_CASE("kernels of a graph have their nodes' clusters beside launches of the same functions", "[forwarded]") {
  NEEDS_CLUSTERS();
  const CUfunction function = image.function("first");
  Lane lane;
  for (unsigned i = 0; i < 5; ++i) lane.post(function, kTwo);
  lane.check();
  const CUgraph graph = new_graph();
  CUgraphNode last = nullptr;
  CUdeviceptr address = lane.cell.address();
  unsigned salt = 9;
  void* arguments[] = {&address, &salt};
  for (const Cluster cluster : {kFour, kNone, kTwo}) {
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = function;
    params.gridDimX = params.gridDimY = kGrid;
    params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    CUgraphNode node = nullptr;
    OK(CU(cuGraphAddKernelNode)(&node, graph, last != nullptr ? &last : nullptr, last != nullptr ? 1 : 0, &params));
    last = node;
    if (cluster == kNone) continue;
    const CUlaunchAttribute attribute = attribute_of(cluster);
    OK(CU(cuGraphKernelNodeSetAttribute)(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &attribute.value));
  }
  const CUgraphExec exec = instantiated(graph);
  for (unsigned round = 0; round < 10; ++round) {
    lane.post(function, kTwo);
    OK(CU(cuGraphLaunch)(exec, lane.stream));
    for (const Cluster cluster : {kFour, kNone, kTwo}) lane.expected = step(lane.expected, salt, cluster);
    lane.post(function, kNone);
  }
  lane.check();
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
}
