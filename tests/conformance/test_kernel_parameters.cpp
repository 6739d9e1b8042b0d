// SPDX-License-Identifier: Apache-2.0
// Kernels with parameters of many sizes, and without any, one behind the other, also in nodes of a graph: each says whether it found its own.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "graph_calls.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

namespace {

constexpr unsigned kSizes[] = {24, 64, 360, 1'000, 2'000, 3'000, 3'600, 4'096};  // bytes
constexpr unsigned kKinds = std::size(kSizes);

// Kernel i has kSizes[i] bytes of parameters: the cell's address, a salt, and otherwise i in every word, of which the first and the last are looked
// at.
std::string image_text() {
  std::string text = R"(.version 7.0
.target sm_52
.address_size 64
.visible .global .align 4 .u32 runs_without;
.visible .entry without()
{
  .reg .u32 %r<3>;
  ld.volatile.global.u32 %r1, [runs_without];
  add.u32 %r2, %r1, 1;
  st.volatile.global.u32 [runs_without], %r2;
  ret;
}
)";
  for (unsigned i = 0; i < kKinds; ++i) {
    const std::string bytes = std::to_string(kSizes[i]), last = std::to_string(kSizes[i] - 4), kind = std::to_string(i);
    text += ".visible .entry with" + kind + "(.param .align 8 .b8 all[" + bytes + "])\n{\n";
    text += "  .reg .u64 %rd<2>;\n  .reg .u32 %r<8>;\n  .reg .pred %p<3>;\n";
    text += "  ld.param.u32 %r1, [all+12];\n  ld.param.u32 %r2, [all+" + last + "];\n";
    text += "  setp.ne.u32 %p1, %r1, " + kind + ";\n  @%p1 bra END;\n";  // another's cell is not touched
    text += "  setp.ne.u32 %p2, %r2, " + kind + ";\n  @%p2 bra END;\n";
    text += R"(  ld.param.u64 %rd1, [all];
  ld.param.u32 %r3, [all+8];
  ld.volatile.global.u32 %r4, [%rd1];
  mad.lo.u32 %r4, %r4, 3, %r3;
  st.volatile.global.u32 [%rd1], %r4;
END:
  ret;
}
)";
  }
  return text;
}

class Launcher {
 public:
  Launcher() : image_(image_text(), LoadedImage::Content{}), without_(image_.function("without")) {
    for (unsigned i = 0; i < kKinds; ++i) with_.push_back(image_.function(("with" + std::to_string(i)).c_str()));
    size_t bytes = 0;
    OK(CU(cuModuleGetGlobal)(&runs_, &bytes, image_.handle(), "runs_without"));
    OK(CU(cuMemsetD32)(runs_, 0, 1));
    OK(CU(cuStreamSynchronize)(nullptr));
  }
  void post(CUstream stream, unsigned kind) {
    if (kind >= kKinds) {
      OK(CU(cuLaunchKernel)(without_, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));
      ++runs_expected_;
      return;
    }
    std::vector<unsigned> words = next(kind);
    void* arguments[] = {words.data()};
    OK(CU(cuLaunchKernel)(with_[kind], 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
  }
  // Behind the node that was added before.
  void add(CUgraph graph, CUgraphNode& last, unsigned kind) {
    std::vector<unsigned> words = next(kind);
    void* arguments[] = {words.data()};
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = with_[kind];
    params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    const CUgraphNode before = last;
    OK(CU(cuGraphAddKernelNode)(&last, graph, &before, before != nullptr ? 1 : 0, &params));
  }
  void check(CUstream stream) const {
    OK(CU(cuStreamSynchronize)(stream));
    REQUIRE(cell_[0] == expected_);
    unsigned runs = 0;
    OK(CU(cuMemcpyDtoH)(&runs, runs_, sizeof runs));
    REQUIRE(runs == runs_expected_);
  }

 private:
  // Parameters of a launch that comes now.
  std::vector<unsigned> next(unsigned kind) {
    std::vector<unsigned> words(kSizes[kind] / sizeof(unsigned), kind);
    const CUdeviceptr address = cell_.address();
    std::memcpy(words.data(), &address, sizeof address);
    words[2] = ++salt_;
    expected_ = expected_ * 3 + salt_;
    return words;
  }

  LoadedImage image_;
  DeviceArray<unsigned> cell_{1};
  CUfunction without_;
  std::vector<CUfunction> with_;
  CUdeviceptr runs_ = 0;
  unsigned runs_expected_ = 0;
  unsigned expected_ = 0;
  unsigned salt_ = 0;
};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  unsigned below(unsigned end) { return static_cast<unsigned>(engine_() % end); }

 private:
  std::mt19937 engine_;
};

// Streams that come and go, with bursts of up to `longest` launches; `kind_of` chooses.
template <class KindOf>
void try_streams(unsigned longest, Random& random, KindOf kind_of) {
  Launcher launcher;
  for (unsigned round = 0; round < 80; ++round) {
    CUstream stream = new_stream();
    for (unsigned burst = 0; burst < 12; ++burst) {
      for (unsigned i = 1 + random.below(longest); i > 0; --i) launcher.post(stream, kind_of(burst));
      if (random.below(3) == 0) launcher.check(stream);
    }
    launcher.check(stream);
    OK(CU(cuStreamDestroy)(stream));
  }
}

}  // namespace

TEST_CASE("kernels with parameters of every size find their own on streams that come and go", "[forwarded]") {
  const DeviceContext context;
  Random random(11);
  try_streams(40, random, [&](unsigned) { return random.below(kKinds); });
}

TEST_CASE("kernels without parameters may stand between kernels with many", "[forwarded]") {
  const DeviceContext context;
  Random random(12);
  try_streams(40, random, [&](unsigned) { return random.below(2 * kKinds); });
}

TEST_CASE("bursts of kernels without parameters may be followed by bursts of kernels with many", "[forwarded]") {
  const DeviceContext context;
  Random random(13);
  try_streams(8, random, [&](unsigned burst) { return burst % 2 == 0 ? kKinds : random.below(kKinds); });
}

TEST_CASE("nodes of a graph that is updated find the parameters of the kernels that they come to have", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  Launcher launcher;
  Random random(14);
  const std::array<CUstream, 2> streams = {new_stream(), new_stream()};
  CUgraphExec exec = nullptr;
  for (unsigned round = 0; round < 60; ++round) {
    const CUgraph graph = new_graph();
    // Wider and wider ones, narrow ones, all of them.
    const unsigned end = round % 20 < 8 ? 1 + round % 20 : kKinds;
    CUgraphNode last = nullptr;
    for (unsigned node = 0; node < 12; ++node) launcher.add(graph, last, random.below(end));
    CUgraphExecUpdateResultInfo result{};
    if (exec == nullptr) {
      exec = instantiated(graph);
    } else {
      OK(CU(cuGraphExecUpdate)(exec, graph, &result));
    }
    OK(CU(cuGraphDestroy)(graph));
    OK(CU(cuGraphLaunch)(exec, streams[round % 2]));  // behind its launch before
    if (random.below(4) == 0) launcher.check(streams[round % 2]);
  }
  launcher.check(streams[1]);
  OK(CU(cuGraphExecDestroy)(exec));
  for (const CUstream stream : streams) OK(CU(cuStreamDestroy)(stream));
}

// Wherever its nodes had to be made anew for the second.
TEST_CASE("a launch of a graph that was updated follows the launch before it in another stream", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  Launcher launcher;
  SharedWord gate;
  const CUstream held = new_stream(), other = new_stream();
  const auto graph_of = [&](unsigned kind) {
    const CUgraph graph = new_graph();
    CUgraphNode last = nullptr;
    launcher.add(graph, last, kind);
    return graph;
  };
  const CUgraph narrow = graph_of(0);
  const CUgraphExec exec = instantiated(narrow);
  OK(CU(cuStreamWaitValue32)(held, gate.address(), 1, CU_STREAM_WAIT_VALUE_EQ));
  OK(CU(cuGraphLaunch)(exec, held));
  const CUgraph wide = graph_of(kKinds - 1);
  CUgraphExecUpdateResultInfo result{};
  OK(CU(cuGraphExecUpdate)(exec, wide, &result));
  OK(CU(cuGraphLaunch)(exec, other));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(CU(cuStreamQuery)(other) == CUDA_ERROR_NOT_READY);
  *gate = 1;
  OK(CU(cuStreamSynchronize)(held));
  launcher.check(other);
  OK(CU(cuGraphExecDestroy)(exec));
  for (const CUgraph graph : {narrow, wide}) OK(CU(cuGraphDestroy)(graph));
  for (const CUstream stream : {held, other}) OK(CU(cuStreamDestroy)(stream));
}
