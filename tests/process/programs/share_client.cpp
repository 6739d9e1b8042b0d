// SPDX-License-Identifier: Apache-2.0
// A client that says how many multiprocessors it is told that it has, and finds out on which ones its kernels run (conversation.hpp):
//
//   count            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: "ok N"
//   context N        makes a context for so many multiprocessors (cuCtxCreate_v3), which is current from then on
//   percent P        sets CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and makes a context (cuCtxCreate_v2), which is current from then on
//   leave            ends the context that is current
//   affinity         what cuCtxGetExecAffinity says: "ok N"
//   resource         multiprocessors of the context's resource: "ok N"
//   where KIND       runs a grid of many blocks that note %smid, and answers which were noted: "ok 0 1 2 3". KIND:
//                      null, blocking, free, urgent   in the NULL stream, and in ones of each kind
//                      chain       twenty launches in a stream, one behind the other
//                      local       a kernel with local memory
//                      cooperative one block for each multiprocessor that it is told of
//                      graph       a graph of two nodes, captured from a stream
//                      changed     the same, its kernels' parameters changed since
//                      kept_stream, kept_graph, kept_changed   the same stream, or graph, each time
//                      kept_wide   the same graph each time, first with many parameters, then with few (wide_graph.hpp)
//                      green       in a green context of half of the resource
//   too_many         a cooperative grid of a block more than fits: the error
//   work MS          grids that fill the device, for so long: "ok COUNT" of those that have ended
//   brief MS         short kernels one behind the other, and a graph of them each time, for so long: "ok COUNT"
//   toil, rest       a thread launches short kernels and waits for each, every millisecond, until the other
//   spin             a kernel that never ends: the driver has it when the answer comes
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <set>
#include <sstream>
#include <stop_token>
#include <thread>
#include <utility>

#include "tests/process/programs/conversation.hpp"
#include "tests/process/programs/driver.hpp"
#include "tests/process/programs/share_kernels.hpp"
#include "tests/process/programs/wide_graph.hpp"

namespace mpsshim::test {
namespace {

constexpr unsigned kMostMultiprocessors = 1'024;
constexpr unsigned kBlocks = 8'192;
constexpr unsigned kIgnoreCoscheduling = 1;
constexpr unsigned kRounds = 50;
constexpr unsigned kBusyRounds = 10'000;

// A version of cuCtxCreate that the headers of this CUDA do not name.
template <typename... Arguments>
CUresult make_with(const char* name, Arguments... arguments) {
  auto* const function = reinterpret_cast<CUresult (*)(Arguments...)>(dlsym(RTLD_DEFAULT, name));
  require(function != nullptr, std::string(name) + " is not there");
  return function(arguments...);
}

class Client {
 public:
  Client();
  std::string answer(const std::string& line);

 private:
  [[nodiscard]] static unsigned count();
  [[nodiscard]] static std::string make_context(bool by_percentage, const std::string& size);
  [[nodiscard]] unsigned resource() const;
  [[nodiscard]] CUresult note(CUfunction function, CUstream stream, unsigned blocks = kBlocks) const;
  [[nodiscard]] CUresult keep_busy() const;
  [[nodiscard]] CUresult launch_together(unsigned blocks) const;
  void run(const std::string& kind);
  void run_in(CUstream stream);
  [[nodiscard]] CUgraphExec make_graph(bool is_changed, CUstream stream, unsigned blocks = kBlocks) const;
  void run_graph(bool is_changed);
  void run_kept(const std::string& kind);
  void run_green();
  [[nodiscard]] std::string where(const std::string& kind);
  [[nodiscard]] unsigned work(std::chrono::milliseconds limit) const;
  unsigned brief(std::chrono::milliseconds limit);
  void toil(std::stop_token stopped) const;

  Device device_;
  CUfunction note_ = nullptr;
  CUfunction note_local_ = nullptr;
  CUfunction busy_ = nullptr;
  CUdeviceptr seen_ = 0;
  CUstream kept_stream_ = nullptr;
  CUgraphExec kept_graph_ = nullptr, kept_changed_ = nullptr;
  std::unique_ptr<WideGraph> kept_wide_;
  std::jthread toiling_;
};

Client::Client() {
  CUmodule module = nullptr;
  CU(cuModuleLoadData(&module, kShareKernels));
  CU(cuModuleGetFunction(&note_, module, "note"));
  CU(cuModuleGetFunction(&note_local_, module, "note_local"));
  CU(cuModuleGetFunction(&busy_, module, "busy"));
  CU(cuMemAlloc(&seen_, kMostMultiprocessors * sizeof(unsigned)));
}

unsigned Client::count() {
  int count = 0;
  CU(cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  return static_cast<unsigned>(count);
}

std::string Client::make_context(bool by_percentage, const std::string& size) {
  CUcontext context = nullptr;
  CUexecAffinityParam affinity{};
  affinity.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
  if (by_percentage) {
    setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", size.c_str(), 1);
    CU(make_with("cuCtxCreate_v2", &context, 0U, CUdevice{0}));
  } else {
    affinity.param.smCount.val = static_cast<unsigned>(std::stoul(size));
    CU(make_with("cuCtxCreate_v3", &context, &affinity, 1, 0U, CUdevice{0}));
  }
  return "ok";
}

unsigned Client::resource() const {
  CUdevResource of_device{}, of_context{};
  CU(cuDeviceGetDevResource(0, &of_device, CU_DEV_RESOURCE_TYPE_SM));
  CU(cuCtxGetDevResource(device_.context, &of_context, CU_DEV_RESOURCE_TYPE_SM));
  require(of_device.sm.smCount == of_context.sm.smCount, "the device has another resource than its context");
  return of_device.sm.smCount;
}

CUresult Client::note(CUfunction function, CUstream stream, unsigned blocks) const {
  CUdeviceptr seen = seen_;
  unsigned rounds = kRounds;
  void* arguments[] = {&seen, &rounds};
  return cuLaunchKernel(function, blocks, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
}

// Some ten times as many threads as there is room for.
CUresult Client::keep_busy() const {
  CUdeviceptr seen = seen_;
  unsigned rounds = kBusyRounds;
  void* arguments[] = {&seen, &rounds};
  return cuLaunchKernel(busy_, kBlocks, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr);
}

CUresult Client::launch_together(unsigned blocks) const {
  CUdeviceptr seen = seen_;
  unsigned rounds = kRounds;
  void* arguments[] = {&seen, &rounds};
  return cuLaunchCooperativeKernel(note_, blocks, 1, 1, 1, 1, 1, 0, nullptr, arguments);
}

void Client::run_in(CUstream stream) {
  CU(note(note_, stream));
  CU(cuStreamSynchronize(stream));
}

CUgraphExec Client::make_graph(bool is_changed, CUstream stream, unsigned blocks) const {
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (int i = 0; i < 2; ++i) CU(note(note_, stream, blocks));
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(stream, &graph));
  CUgraphExec launchable = nullptr;
  CU(cuGraphInstantiateWithFlags(&launchable, graph, 0));
  if (is_changed) {
    CUgraphNode nodes[2] = {};
    std::size_t found = 2;
    CU(cuGraphGetNodes(graph, nodes, &found));
    for (const CUgraphNode node : nodes) {
      CUDA_KERNEL_NODE_PARAMS params{};
      CU(cuGraphKernelNodeGetParams(node, &params));
      params.gridDimX = kBlocks / 2;
      CU(cuGraphExecKernelNodeSetParams(launchable, node, &params));
    }
  }
  CU(cuGraphDestroy(graph));
  return launchable;
}

void Client::run_graph(bool is_changed) {
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const CUgraphExec launchable = make_graph(is_changed, stream);
  CU(cuGraphLaunch(launchable, stream));
  CU(cuStreamSynchronize(stream));
  CU(cuGraphExecDestroy(launchable));
  CU(cuStreamDestroy(stream));
}

void Client::run_kept(const std::string& kind) {
  if (kept_stream_ == nullptr) CU(cuStreamCreate(&kept_stream_, CU_STREAM_NON_BLOCKING));
  if (kind == "kept_stream") return run_in(kept_stream_);
  if (kind == "kept_wide") {
    if (kept_wide_ == nullptr) kept_wide_ = std::make_unique<WideGraph>(seen_);
    return kept_wide_->run(kept_stream_, kBlocks);
  }
  CUgraphExec& kept = kind == "kept_graph" ? kept_graph_ : kept_changed_;
  if (kept == nullptr) kept = make_graph(kind == "kept_changed", kept_stream_);
  CU(cuGraphLaunch(kept, kept_stream_)), CU(cuStreamSynchronize(kept_stream_));
}

void Client::run_green() {
  CUdevResource whole{};
  CU(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
  CUdevResource half{};
  unsigned groups = 1;
  CU(cuDevSmResourceSplitByCount(&half, &groups, &whole, nullptr, kIgnoreCoscheduling, whole.sm.smCount / 2));
  CUdevResourceDesc descriptor = nullptr;
  CU(cuDevResourceGenerateDesc(&descriptor, &half, 1));
  CUgreenCtx green = nullptr;
  CU(cuGreenCtxCreate(&green, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  CUcontext context = nullptr;
  CU(cuCtxFromGreenCtx(&context, green));
  CU(cuCtxPushCurrent(context));
  run_in(nullptr);
  CU(cuCtxPopCurrent(&context));
  CU(cuGreenCtxDestroy(green));
}

void Client::run(const std::string& kind) {
  if (kind == "graph" || kind == "changed") return run_graph(kind == "changed");
  if (kind == "green") return run_green();
  if (kind.starts_with("kept_")) return run_kept(kind);
  if (kind == "null") return run_in(nullptr);
  if (kind == "local") return CU(note(note_local_, nullptr)), CU(cuCtxSynchronize());
  if (kind == "cooperative") return CU(launch_together(count())), CU(cuCtxSynchronize());
  CUstream stream = nullptr;
  if (kind == "urgent") {
    int least = 0, greatest = 0;
    CU(cuCtxGetStreamPriorityRange(&least, &greatest));
    CU(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest));
  } else if (kind == "blocking" || kind == "free" || kind == "chain") {
    CU(cuStreamCreate(&stream, kind == "blocking" ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
  } else {
    throw Failure("there is no such kind");
  }
  for (int i = 0; i < (kind == "chain" ? 20 : 0); ++i) CU(note(note_, stream, 64));
  run_in(stream);
  CU(cuStreamDestroy(stream));
}

std::string Client::where(const std::string& kind) {
  CU(cuMemsetD32(seen_, 0, kMostMultiprocessors));
  CU(cuCtxSynchronize());
  run(kind);
  std::vector<unsigned> seen(kMostMultiprocessors);
  CU(cuMemcpyDtoH(seen.data(), seen_, kMostMultiprocessors * sizeof(unsigned)));
  std::string answer = "ok";
  for (unsigned i = 0; i < kMostMultiprocessors; ++i) {
    if (seen[i] != 0) answer += ' ' + std::to_string(i);
  }
  return answer;
}

// Two at a time are with the driver, so that the next one is there when one ends.
unsigned Client::work(std::chrono::milliseconds limit) const {
  CUevent ended[2] = {};
  for (CUevent& event : ended) CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  unsigned count = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (unsigned i = 0; std::chrono::steady_clock::now() - begin < limit; ++i) {
    if (i >= 2) {
      CU(cuEventSynchronize(ended[i % 2]));
      ++count;
    }
    CU(keep_busy());
    CU(cuEventRecord(ended[i % 2], nullptr));
  }
  CU(cuCtxSynchronize());
  for (const CUevent event : ended) CU(cuEventDestroy(event));
  return count;
}

unsigned Client::brief(std::chrono::milliseconds limit) {
  run_kept("kept_stream");
  const CUgraphExec graph = make_graph(false, kept_stream_, 16);
  unsigned count = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (; std::chrono::steady_clock::now() - begin < limit; ++count) {
    for (int i = 0; i < 8; ++i) CU(note(note_, kept_stream_, 16));
    CU(cuGraphLaunch(graph, kept_stream_));
    CU(cuStreamSynchronize(kept_stream_));
  }
  CU(cuGraphExecDestroy(graph));
  return count;
}

void Client::toil(std::stop_token stopped) const {
  CU(cuCtxSetCurrent(device_.context));
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr words = 0;  // its own: others are asked where kernels of theirs have run
  CU(cuMemAlloc(&words, kMostMultiprocessors * sizeof(unsigned)));
  unsigned rounds = kRounds;
  void* arguments[] = {&words, &rounds};
  while (!stopped.stop_requested()) {
    CU(cuLaunchKernel(note_, 16, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
    CU(cuStreamSynchronize(stream));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CU(cuStreamDestroy(stream));
  CU(cuMemFree(words));
}

std::string Client::answer(const std::string& line) {
  std::istringstream words(line);
  std::string command, argument;
  words >> command >> argument;
  if (command == "count") return "ok " + std::to_string(count());
  if (command == "resource") return "ok " + std::to_string(resource());
  if (command == "where") return where(argument);
  if (command == "toil") return toiling_ = std::jthread([this](std::stop_token stopped) { toil(std::move(stopped)); }), "ok";
  if (command == "rest") return toiling_ = {}, "ok";
  if (command == "work") return "ok " + std::to_string(work(std::chrono::milliseconds(std::stol(argument))));
  if (command == "brief") return "ok " + std::to_string(brief(std::chrono::milliseconds(std::stol(argument))));
  if (command == "context" || command == "percent") return make_context(command == "percent", argument);
  if (command == "leave") {
    CUcontext context = nullptr;
    CU(cuCtxGetCurrent(&context));
    require(context != device_.context, "the first context stays");
    CU(cuCtxDestroy(context));
    CU(cuCtxSetCurrent(device_.context));
    return "ok";
  }
  if (command == "affinity") {
    CUexecAffinityParam affinity{};
    CU(cuCtxGetExecAffinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
    return "ok " + std::to_string(affinity.param.smCount.val);
  }
  if (command == "too_many") {
    int blocks = 0;
    CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, note_, 1, 0));
    return describe(launch_together(count() * static_cast<unsigned>(blocks) + 1));
  }
  if (command == "spin") {
    CUdeviceptr never = 0;
    CU(cuMemAlloc(&never, 4));
    CU(cuMemsetD8(never, 0, 4));
    CU(cuCtxSynchronize());
    CU(device_.launch_wait_flag(never));
    CU_GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
    return "ok";
  }
  return "there is no such command";
}

}  // namespace
}  // namespace mpsshim::test

int main() { return mpsshim::test::converse<mpsshim::test::Client>(); }
