// SPDX-License-Identifier: Apache-2.0
// Conditional nodes: bodies that run once, not at all, or again and again, by values that kernels set.
#include <vector>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

namespace {

struct Fixture {
  DeviceContext context;
  LoadedImage image{"conditions.fatbin"};
  CUfunction set_from = image.function("set_from");
  CUfunction count_down = image.function("count_down");
  CUfunction add = image.function("add");
  DeviceArray<unsigned> input{1};
  DeviceArray<unsigned> sum{1};
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;

  Fixture() { OK(CU(cuGraphCreate)(&graph, 0)); }
  ~Fixture() {
    if (exec != nullptr) CU(cuGraphExecDestroy)(exec);
    if (graph != nullptr) CU(cuGraphDestroy)(graph);
  }

  CUgraphConditionalHandle condition(unsigned value = 0, unsigned flags = 0) {
    CUgraphConditionalHandle handle = 0;
    OK(CU(cuGraphConditionalHandleCreate)(&handle, graph, context.handle(), value, flags));
    return handle;
  }
  template <class... Arguments>
  static CUgraphNode kernel(CUgraph into, const std::vector<CUgraphNode>& before, CUfunction function, Arguments... arguments) {
    void* pointers[] = {&arguments..., nullptr};
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = function;
    params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = pointers;
    CUgraphNode node = nullptr;
    OK(CU(cuGraphAddKernelNode)(&node, into, before.data(), before.size(), &params));
    return node;
  }
  CUresult try_conditional(CUgraph into, const std::vector<CUgraphNode>& before, CUgraphConditionalHandle handle, int type, unsigned size,
                           std::vector<CUgraph>& bodies, CUgraphNode* added = nullptr) const {
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.conditional.handle = handle;
    params.conditional.type = static_cast<CUgraphConditionalNodeType>(type);
    params.conditional.size = size;
    params.conditional.ctx = context.handle();
    CUgraphNode node = nullptr;
    const CUresult result =
        driver_symbol<CUresult (*)(CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t, CUgraphNodeParams*)>(
            "cuGraphAddNode_v2")(&node, into, before.data(), nullptr, before.size(), &params);
    if (result == CUDA_SUCCESS) bodies.assign(params.conditional.phGraph_out, params.conditional.phGraph_out + size);
    if (added != nullptr) *added = node;
    return result;
  }
  std::vector<CUgraph> conditional(CUgraph into, const std::vector<CUgraphNode>& before, CUgraphConditionalHandle handle, int type,
                                   unsigned size) const {
    std::vector<CUgraph> bodies;
    OK(try_conditional(into, before, handle, type, size, bodies));
    return bodies;
  }
  void instantiate() { OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0)); }
  // What the bodies have added up in one launch.
  unsigned run(unsigned value) {
    OK(CU(cuMemcpyHtoD)(input.address(), &value, sizeof value));
    OK(CU(cuMemsetD8)(sum.address(), 0, sizeof(unsigned)));
    OK(CU(cuStreamSynchronize)(nullptr));
    OK(CU(cuGraphLaunch)(exec, nullptr));
    OK(CU(cuStreamSynchronize)(nullptr));
    return sum[0];
  }
};

constexpr int kIf = 0;
constexpr int kWhile = 1;
constexpr int kSwitch = 2;  // since CUDA 12.8

}  // namespace

TEST_CASE("a condition decides whether a body runs", "[forwarded]") {
  Fixture f;
  const CUgraphConditionalHandle handle = f.condition();
  const CUgraphNode setter = f.kernel(f.graph, {}, f.set_from, f.input.address(), handle);
  const std::vector<CUgraph> bodies = f.conditional(f.graph, {setter}, handle, kIf, 1);
  f.kernel(bodies[0], {}, f.add, f.sum.address(), 1u);
  f.instantiate();
  CHECK(f.run(1) == 1);
  CHECK(f.run(0) == 0);
  CHECK(f.run(7) == 1);
}

TEST_CASE("a condition chooses between two bodies, and among several", "[forwarded]") {
  Fixture f;
  const CUgraphConditionalHandle handle = f.condition();
  const CUgraphNode setter = f.kernel(f.graph, {}, f.set_from, f.input.address(), handle);
  SECTION("if and else") {
    const std::vector<CUgraph> bodies = f.conditional(f.graph, {setter}, handle, kIf, 2);
    f.kernel(bodies[0], {}, f.add, f.sum.address(), 10u);
    f.kernel(bodies[1], {}, f.add, f.sum.address(), 20u);
    f.instantiate();
    CHECK(f.run(1) == 10);
    CHECK(f.run(0) == 20);
  }
  SECTION("switch") {
    const std::vector<CUgraph> bodies = f.conditional(f.graph, {setter}, handle, kSwitch, 3);
    for (unsigned i = 0; i < 3; ++i) f.kernel(bodies[i], {}, f.add, f.sum.address(), 100 + i);
    f.instantiate();
    for (unsigned i = 0; i < 3; ++i) CHECK(f.run(i) == 100 + i);
    CHECK(f.run(3) == 0);
  }
}

TEST_CASE("a body runs again while its condition holds, and begins with the default in each launch", "[forwarded]") {
  Fixture f;
  const CUgraphConditionalHandle handle = f.condition(1, CU_GRAPH_COND_ASSIGN_DEFAULT);
  const std::vector<CUgraph> bodies = f.conditional(f.graph, {}, handle, kWhile, 1);
  const CUgraphNode first = f.kernel(bodies[0], {}, f.add, f.sum.address(), 1u);
  f.kernel(bodies[0], {first}, f.count_down, f.input.address(), handle);
  f.instantiate();
  CHECK(f.run(10) == 10);
  CHECK(f.run(1) == 1);
  CHECK(f.run(200) == 200);
}

TEST_CASE("conditions lie within conditions", "[forwarded]") {
  Fixture f;
  const CUgraphConditionalHandle loop = f.condition(1, CU_GRAPH_COND_ASSIGN_DEFAULT);
  const CUgraphConditionalHandle last = f.condition();
  const std::vector<CUgraph> rounds = f.conditional(f.graph, {}, loop, kWhile, 1);
  const CUgraphNode counted = f.kernel(rounds[0], {}, f.count_down, f.input.address(), loop);
  const CUgraphNode told = f.kernel(rounds[0], {counted}, f.set_from, f.input.address(), last);
  const std::vector<CUgraph> ends = f.conditional(rounds[0], {told}, last, kIf, 2);
  f.kernel(ends[0], {}, f.add, f.sum.address(), 1u);
  f.kernel(ends[1], {}, f.add, f.sum.address(), 1000u);  // the last round
  f.instantiate();
  CHECK(f.run(5) == 1004);
  CHECK(f.run(1) == 1000);
}

TEST_CASE("bodies have copies, fills and order among their nodes", "[forwarded]") {
  Fixture f;
  const DeviceArray<unsigned> word(1);
  const CUgraphConditionalHandle handle = f.condition(1, CU_GRAPH_COND_ASSIGN_DEFAULT);
  const std::vector<CUgraph> bodies = f.conditional(f.graph, {}, handle, kIf, 1);
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = word.address();
  fill.value = 40;
  fill.elementSize = 4;
  fill.width = fill.height = 1;
  CUgraphNode filled = nullptr;
  OK(CU(cuGraphAddMemsetNode)(&filled, bodies[0], nullptr, 0, &fill, f.context.handle()));
  const CUgraphNode added = f.kernel(bodies[0], {filled}, f.add, word.address(), 2u);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = word.address();
  copy.dstDevice = f.sum.address();
  copy.WidthInBytes = sizeof(unsigned);
  copy.Height = copy.Depth = 1;
  CUgraphNode copied = nullptr;
  OK(CU(cuGraphAddMemcpyNode)(&copied, bodies[0], &added, 1, &copy, f.context.handle()));
  f.instantiate();
  CHECK(f.run(0) == 42);
}

TEST_CASE("an instantiated graph outlives the one that it was made of", "[forwarded]") {
  Fixture f;
  const CUgraphConditionalHandle handle = f.condition(1, CU_GRAPH_COND_ASSIGN_DEFAULT);
  const std::vector<CUgraph> bodies = f.conditional(f.graph, {}, handle, kWhile, 1);
  const CUgraphNode first = f.kernel(bodies[0], {}, f.add, f.sum.address(), 1u);
  f.kernel(bodies[0], {first}, f.count_down, f.input.address(), handle);
  f.instantiate();
  OK(CU(cuGraphDestroy)(f.graph));
  f.graph = nullptr;
  CHECK(f.run(3) == 3);
}

TEST_CASE("a graph with conditions is instantiated once at a time", "[forwarded]") {
  Fixture f;
  const CUgraphConditionalHandle handle = f.condition();
  const CUgraphNode setter = f.kernel(f.graph, {}, f.set_from, f.input.address(), handle);
  const std::vector<CUgraph> bodies = f.conditional(f.graph, {setter}, handle, kIf, 1);
  const CUgraphNode first = f.kernel(bodies[0], {}, f.add, f.sum.address(), 1u);
  f.instantiate();
  CHECK(f.run(1) == 1);
  if (driver_kind() == DriverKind::forwarded) {
    CUgraphExec second = nullptr;
    CHECK(CU(cuGraphInstantiateWithFlags)(&second, f.graph, 0) == CUDA_ERROR_NOT_SUPPORTED);
  }
  SECTION("as it is") {
    OK(CU(cuGraphExecDestroy)(f.exec));
    f.instantiate();
    CHECK(f.run(1) == 1);
    CHECK(f.run(0) == 0);
  }
  SECTION("changed") {
    OK(CU(cuGraphExecDestroy)(f.exec));
    f.exec = nullptr;
    f.kernel(bodies[0], {first}, f.add, f.sum.address(), 10u);
    f.instantiate();
    CHECK(f.run(1) == 11);
    CHECK(f.run(0) == 0);
  }
  SECTION("while launches of the first are under way") {
    for (int i = 0; i < 20; ++i) OK(CU(cuGraphLaunch)(f.exec, nullptr));
    OK(CU(cuGraphExecDestroy)(f.exec));
    f.instantiate();
    CHECK(f.run(1) == 1);
  }
}

TEST_CASE("a handle is of one node in its own graph", "[forwarded]") {
  Fixture f;
  const CUgraphConditionalHandle handle = f.condition();
  std::vector<CUgraph> bodies;
  CHECK(f.try_conditional(f.graph, {}, handle, kWhile, 2, bodies) == CUDA_ERROR_INVALID_VALUE);
  CHECK(f.try_conditional(f.graph, {}, handle, kIf, 0, bodies) == CUDA_ERROR_INVALID_VALUE);
  CHECK(f.try_conditional(f.graph, {}, handle, kIf, 3, bodies) == CUDA_ERROR_INVALID_VALUE);
  CUgraphConditionalHandle none = 0;
  CHECK(CU(cuGraphConditionalHandleCreate)(&none, f.graph, f.context.handle(), 0, 2) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphConditionalHandleCreate)(nullptr, f.graph, f.context.handle(), 0, 0) == CUDA_ERROR_INVALID_VALUE);
  if (driver_kind() != DriverKind::forwarded) return;
  CUgraphNode node = nullptr;
  OK(f.try_conditional(f.graph, {}, handle, kIf, 1, bodies, &node));
  CUgraphNodeType type{};
  OK(CU(cuGraphNodeGetType)(node, &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_CONDITIONAL);
  CHECK(f.try_conditional(f.graph, {}, handle, kIf, 1, bodies) == CUDA_ERROR_INVALID_VALUE);
  CHECK(f.try_conditional(f.graph, {}, handle + 1000, kIf, 1, bodies) == CUDA_ERROR_INVALID_VALUE);
  CUgraph other = nullptr;
  OK(CU(cuGraphCreate)(&other, 0));
  const CUgraphConditionalHandle second = f.condition();
  CHECK(f.try_conditional(other, {}, second, kIf, 1, bodies) == CUDA_ERROR_INVALID_VALUE);
  // "The graph cannot be used in a child node. The graph cannot be cloned."
  CUgraph clone = nullptr;
  CHECK(CU(cuGraphClone)(&clone, f.graph) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(CU(cuGraphAddChildGraphNode)(&node, other, nullptr, 0, f.graph) == CUDA_ERROR_NOT_SUPPORTED);
  OK(CU(cuGraphDestroy)(other));
}

TEST_CASE("a body is filled by a capture", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("captures are asked of the library in front of the CPU driver");
  Fixture f;
  const CUgraphConditionalHandle handle = f.condition(1, CU_GRAPH_COND_ASSIGN_DEFAULT);
  const std::vector<CUgraph> bodies = f.conditional(f.graph, {}, handle, kWhile, 1);
  const CUstream stream = new_stream();
  OK(CU(cuStreamBeginCaptureToGraph)(stream, bodies[0], nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(launch(f.add, stream, 1, 1, f.sum.address(), 3u));
  OK(launch(f.count_down, stream, 1, 1, f.input.address(), handle));
  OK(CU(cuStreamEndCapture)(stream, nullptr));  // who names the graph need not ask for it
  f.instantiate();
  CHECK(f.run(4) == 12);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("what stands before a condition in this process is told of", "[forwarded]") {
  if (driver_kind() != DriverKind::forwarded) MPSSHIM_SKIP("a matter of the library: natively such a graph runs");
  Fixture f;
  const CUgraphConditionalHandle handle = f.condition();
  const CUgraphNode setter = f.kernel(f.graph, {}, f.set_from, f.input.address(), handle);
  const CUDA_HOST_NODE_PARAMS nothing{[](void*) {}, nullptr};
  CUgraphNode host = nullptr;
  SECTION("between the kernel and the node") {
    OK(CU(cuGraphAddHostNode)(&host, f.graph, &setter, 1, &nothing));
    const std::vector<CUgraph> bodies = f.conditional(f.graph, {host}, handle, kIf, 1);
    CHECK(CU(cuGraphInstantiateWithFlags)(&f.exec, f.graph, 0) == CUDA_ERROR_NOT_SUPPORTED);
    f.exec = nullptr;
  }
  SECTION("in a body") {
    const std::vector<CUgraph> bodies = f.conditional(f.graph, {setter}, handle, kIf, 1);
    OK(CU(cuGraphAddHostNode)(&host, bodies[0], nullptr, 0, &nothing));
    CHECK(CU(cuGraphInstantiateWithFlags)(&f.exec, f.graph, 0) == CUDA_ERROR_NOT_SUPPORTED);
    f.exec = nullptr;
  }
  SECTION("behind it") {
    CUgraphNode node = nullptr;
    std::vector<CUgraph> bodies;
    OK(f.try_conditional(f.graph, {setter}, handle, kIf, 1, bodies, &node));
    f.kernel(bodies[0], {}, f.add, f.sum.address(), 5u);
    OK(CU(cuGraphAddHostNode)(&host, f.graph, &node, 1, &nothing));
    f.instantiate();
    CHECK(f.run(1) == 5);
    CHECK(f.run(0) == 0);
  }
}
