// SPDX-License-Identifier: Apache-2.0
// Graphs: added node by node or captured, launched again and again, with other parameters from one launch to the next, other work in between.
#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "exercise.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

namespace {

using Words = std::vector<Word>;

// Each launch makes of the words what its steps make of them, and leaves them where they were.
class SteppingGraph {
 public:
  SteppingGraph(const Tools& tools, unsigned count)
      : tools_(tools), first_(count * sizeof(Word)), second_(count * sizeof(Word)), third_(count * sizeof(Word)), count_(count), words_(count) {
    for (Word& word : words_) word = tools.work.random.word();
    const Stream& stream = tools.work.any_stream();
    tools.transfers.upload(stream, first_.address(), words_);
    tools.work.wait_for(stream);
    if (tools.work.random.below(2) == 0)
      add_nodes();
    else
      capture();
    CU(cuGraphInstantiateWithFlags(&exec_, graph_, 0));
  }
  SteppingGraph(const SteppingGraph&) = delete;
  ~SteppingGraph() {
    if (tools_.work.process.options.leaves_at_once) return;
    cuGraphExecDestroy(exec_);
    cuGraphDestroy(graph_);
  }

  void launch(const Stream& stream);
  void verify(const Stream& stream);

 private:
  static constexpr std::size_t kMostNodes = 24;
  void add_nodes();
  void capture();
  void change();
  [[nodiscard]] Step choose(unsigned most_ticks) const;
  void with_parameters(std::size_t number, const std::function<void(const CUDA_KERNEL_NODE_PARAMS&)>& use) const;

  Tools tools_;
  DeviceMemory first_, second_, third_;
  const unsigned count_;
  Words words_;  // what it must hold
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
  std::vector<Step> steps_;
  std::vector<CUgraphNode> nodes_;  // of steps_; empty: captured, cannot be changed
  Word join_salt_ = 0;
};

// Kernels with 40 bytes of parameters and, where nodes may grow, with up to nearly 4 KiB.
Step SteppingGraph::choose(unsigned most_ticks) const {
  constexpr std::array kWide = {StepKind::few, StepKind::many, StepKind::more, StepKind::much, StepKind::most};
  Random& random = tools_.work.random;
  const bool is_wide = !tools_.work.process.options.has_narrow_nodes && random.one_in(3);
  return tools_.work.process.kernels.choose(is_wide ? kWide[random.below(kWide.size())] : StepKind::brief, count_, random, most_ticks);
}

void SteppingGraph::with_parameters(std::size_t number, const std::function<void(const CUDA_KERNEL_NODE_PARAMS&)>& use) const {
  const Step& step = steps_[number];
  ChainMemory memory{first_.address(), second_.address(), 0, 0, count_};
  if (number % 2 != 0) std::swap(memory.from, memory.to);
  with_node_arguments(step, memory, [&](void** arguments) {
    CUDA_KERNEL_NODE_PARAMS node{};
    node.func = tools_.work.process.kernels.function(step.kind);
    node.gridDimX = step.grid;
    node.blockDimX = step.block;
    node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1;
    node.kernelParams = arguments;
    use(node);
  });
}

// Steps to and fro, an even number of them.
void SteppingGraph::add_nodes() {
  Random& random = tools_.work.random;
  CU(cuGraphCreate(&graph_, 0));
  for (std::size_t number = 0, count = 2 * (1 + random.below(kMostNodes / 2)); number < count; ++number) {
    steps_.push_back(choose(0));
    nodes_.emplace_back();
    const CUgraphNode* const before = number == 0 ? nullptr : &nodes_[number - 1];
    with_parameters(number, [&](const auto& node) { CU(cuGraphAddKernelNode(&nodes_.back(), graph_, before, number == 0 ? 0 : 1, &node)); });
  }
}

// Two steps beside each other, the second in another stream; then both joined where they came from.
void SteppingGraph::capture() {
  Random& random = tools_.work.random;
  const StepKernels& kernels = tools_.work.process.kernels;
  const CUfunction join = kernels.function("join");
  join_salt_ = random.word();
  CUstream stream = nullptr, side = nullptr;
  CUevent fork = nullptr, joined = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  CU(cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING));
  for (int i = 0; i < 2; ++i) {
    steps_.push_back(kernels.choose(i == 0 ? StepKind::brief : StepKind::many, count_, random, 0));
    steps_.back().has_priority = false;
  }
  {
    const std::unique_lock nobody_waits_for_all(tools_.work.process.capturing);
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuEventRecord(fork, stream));
    CU(cuStreamWaitEvent(side, fork, 0));
    kernels.launch(steps_[0], {first_.address(), second_.address(), 0, 0, count_}, stream);
    kernels.launch(steps_[1], {first_.address(), third_.address(), 0, 0, count_}, side);
    CU(cuEventRecord(joined, side));
    CU(cuStreamWaitEvent(stream, joined, 0));
    CUdeviceptr a = second_.address(), b = third_.address(), out = first_.address();
    unsigned count = count_, ticks = 0;
    void* arguments[] = {&out, &a, &b, &a, &count, &join_salt_, &ticks};
    CU(cuLaunchKernel(join, 2, 1, 1, 64, 1, 1, 0, stream, arguments, nullptr));
    CU(cuMemsetD32Async(third_.address(), 0xBAD, count_, stream));
    CU(cuStreamEndCapture(stream, &graph_));
  }
  CU(cuEventDestroy(fork));
  CU(cuEventDestroy(joined));
  CU(cuStreamDestroy(side));
  CU(cuStreamDestroy(stream));
}

// Other parameters for some nodes, from the next launch on; those under way keep theirs.
void SteppingGraph::change() {
  Workplace& work = tools_.work;
  for (std::size_t number = 0; number < nodes_.size(); ++number) {
    if (!work.random.one_in(3)) continue;
    steps_[number] = choose(work.random.one_in(4) ? work.sizes().ticks : 0);
    work.history.note("cuGraphExecKernelNodeSetParams",
                      {{"node", number}, {"kind", static_cast<std::uint64_t>(steps_[number].kind)}, {"salt", steps_[number].salt}});
    with_parameters(number, [&](const auto& node) { CU(cuGraphExecKernelNodeSetParams(exec_, nodes_[number], &node)); });
  }
}

void SteppingGraph::launch(const Stream& stream) {
  if (tools_.work.random.below(2) == 0) change();
  tools_.work.history.note("cuGraphLaunch", {{"graph", reinterpret_cast<std::uint64_t>(exec_)}, {"steps", steps_.size()}});
  tools_.work.did();
  CU(cuGraphLaunch(exec_, stream.handle));
  Words next(count_);
  if (!nodes_.empty()) {
    for (const Step& step : steps_) {
      apply(step, words_, next);
      words_.swap(next);
    }
    return;
  }
  Words other(count_);
  apply(steps_[0], words_, next);
  apply(steps_[1], words_, other);
  for (std::size_t i = 0; i < count_; ++i) {
    words_[i] = mix(mix(mix(join_salt_ + static_cast<Word>(i), next[i]), other[(i + 1) % count_]), next[(i + 2) % count_]);
  }
}

void SteppingGraph::verify(const Stream& stream) {
  const Words found = tools_.transfers.download(stream, first_.address(), count_);
  tools_.work.expect(nodes_.empty() ? "what a captured graph has left" : "what a graph has left", found, words_);
}

class Graphs final : public Exercise {
 public:
  explicit Graphs(const Tools& tools) : tools_(tools) {}
  void run() override;

 private:
  static constexpr std::size_t kMostGraphs = 3;
  Tools tools_;
  std::vector<std::unique_ptr<SteppingGraph>> graphs_;
};

void Graphs::run() {
  Workplace& work = tools_.work;
  Random& random = work.random;
  if (graphs_.empty() || random.one_in(10)) {
    if (graphs_.size() == kMostGraphs) graphs_.erase(graphs_.begin());
    const auto tiles = static_cast<unsigned>(random.of_any_size(work.sizes().words / kTile));
    graphs_.push_back(std::make_unique<SteppingGraph>(tools_, tiles * kTile));
  }
  SteppingGraph& graph = *graphs_[random.below(graphs_.size())];
  const Stream& stream = work.any_stream();
  for (std::size_t left = 1 + random.below(8); left > 0; --left) {
    graph.launch(stream);
    work.keep_pace(stream);
  }
  graph.verify(stream);
  work.verified(Kind::graphs);
}

}  // namespace

std::unique_ptr<Exercise> make_graphs(const Tools& tools) { return std::make_unique<Graphs>(tools); }

}  // namespace mpsshim::soak
