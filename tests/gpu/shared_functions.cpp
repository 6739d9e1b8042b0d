// SPDX-License-Identifier: Apache-2.0
// shared_functions [--greens N] [--primaries N] [--seconds S] [--seed N] [--settings] [--questions] [--loads] [--exclusively] [--lock
// all|primary|none] Functions that several threads of one process launch at once, as the executor's workers do: each thread has a context (green ones
// of all multiprocessors, 5; or the primary one, 2), a stream and graphs of its own, sets functions and arguments in their nodes and launches them.
// Every kernel checks its arguments and that it follows the one before it. Exit status 1: some were wrong, which is printed.
//   --settings      another thread sets attributes of the functions all the time      --questions   … asks for their occupancy
//   --loads         another thread loads and unloads the module                      --exclusively  these do it while nobody sets or launches
//   --lock          under which nodes are set: of all threads, of those in the primary context, none (default)
// Launches in the primary context are always under one lock, as the executor's are. Found so far: docs/experiments/2026-11-23-shared-functions.md.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/shared_functions.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {
namespace {

constexpr unsigned kLongestChain = 8;
constexpr unsigned kMostUnderWay = 60;  // graphs of a lane

struct Options {
  unsigned greens = 5;
  unsigned primaries = 2;
  double seconds = 10;
  unsigned seed = 1;
  bool settings = false;
  bool questions = false;
  bool loads = false;
  bool exclusively = false;
  std::string lock = "none";
};

struct Functions {
  CUmodule module = nullptr;
  CUfunction kernel[kKernels] = {};
  CUfunction nop = nullptr;
  CUfunction write_word = nullptr;
};

Functions load(const std::vector<char>& image) {
  Functions functions;
  CU(cuModuleLoadData(&functions.module, image.data()));
  for (unsigned i = 0; i < kKernels; ++i) CU(cuModuleGetFunction(&functions.kernel[i], functions.module, kNames[i]));
  CU(cuModuleGetFunction(&functions.nop, functions.module, "nop"));
  CU(cuModuleGetFunction(&functions.write_word, functions.module, "write_word"));
  return functions;
}

CUDA_KERNEL_NODE_PARAMS node_params(CUfunction function, void** arguments, unsigned threads) {
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = function;
  params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
  params.blockDimX = threads;
  params.kernelParams = arguments;
  return params;
}

// So many kernels in a row, and one behind them that tells the host.
struct Chain {
  CUgraphExec exec = nullptr;
  std::vector<CUgraphNode> kernels;
  CUgraphNode writer = nullptr;

  Chain(const Functions& functions, unsigned length, unsigned* word) {
    CUgraph graph = nullptr;
    CU(cuGraphCreate(&graph, 0));
    CUgraphNode last = nullptr;
    const auto add = [&](const CUDA_KERNEL_NODE_PARAMS& params) {
      CUgraphNode node = nullptr;
      CU(cuGraphAddKernelNode(&node, graph, last == nullptr ? nullptr : &last, last == nullptr ? 0 : 1, &params));
      return last = node;
    };
    for (unsigned i = 0; i < length; ++i) kernels.push_back(add(node_params(functions.nop, nullptr, 1)));
    unsigned nothing = 0;
    void* arguments[] = {&word, &nothing};
    writer = add(node_params(functions.write_word, arguments, 1));
    CU(cuGraphInstantiate(&exec, graph, 0));
  }
};

class Trial;

class Lane {
 public:
  Lane(Trial& trial, unsigned number, bool is_green);
  void run(unsigned seed);
  [[nodiscard]] std::uint64_t launches() const { return number_; }

 private:
  void launch(std::mt19937& random);
  void set(const Chain& chain, unsigned node, unsigned kernel);
  void push() const {
    if (green_ != nullptr) CU(cuCtxPushCurrent(green_));
  }
  void pop() const {
    CUcontext popped = nullptr;
    if (green_ != nullptr) CU(cuCtxPopCurrent(&popped));
  }

  Trial& trial_;
  const Word lane_;
  CUcontext green_ = nullptr;
  CUstream stream_ = nullptr;
  CUdeviceptr last_ = 0;
  volatile unsigned* word_ = nullptr;  // pinned: the last chain that has ended
  unsigned chains_launched_ = 0;
  std::uint64_t number_ = 0;
  std::vector<Chain> chains_;
};

class Trial {
 public:
  explicit Trial(const Options& options);
  [[nodiscard]] int run();

 private:
  friend class Lane;
  void disturb(const std::function<void(std::mt19937&)>& act);
  [[nodiscard]] int tell(std::uint64_t launches) const;

  const Options options_;
  std::vector<char> image_;
  CUcontext context_ = nullptr;
  Functions functions_;
  CUdeviceptr report_ = 0;
  unsigned* words_ = nullptr;
  std::mutex launch_mutex_;  // of the primary context
  std::mutex set_mutex_;
  std::atomic<unsigned> change_waits_{0};  // threads that want it whole: lanes let them
  std::atomic<std::uint64_t> changes_made_{0};
  std::shared_mutex changes_;  // taken whole by who changes functions, with --exclusively
  std::atomic<bool> stop_{false};
  std::vector<std::unique_ptr<Lane>> lanes_;
};

Lane::Lane(Trial& trial, unsigned number, bool is_green) : trial_(trial), lane_(number), word_(trial.words_ + 16 * number) {
  CU(cuMemAlloc(&last_, sizeof(unsigned)));
  CU(cuMemsetD32(last_, 0, 1));
  if (is_green) {
    CUdevResource all{};
    CUdevResourceDesc descriptor = nullptr;
    CUgreenCtx green = nullptr;
    CU(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    CU(cuDevResourceGenerateDesc(&descriptor, &all, 1));
    CU(cuGreenCtxCreate(&green, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    CU(cuCtxFromGreenCtx(&green_, green));
    CU(cuGreenCtxStreamCreate(&stream_, green, CU_STREAM_NON_BLOCKING, 0));
  } else {
    CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  }
  push();
  for (unsigned length = 1; length <= kLongestChain; ++length) chains_.emplace_back(trial.functions_, length, const_cast<unsigned*>(word_));
  pop();
}

void Lane::set(const Chain& chain, unsigned node, unsigned kernel) {
  LaunchIdentity identity{lane_, ++number_, reinterpret_cast<unsigned*>(last_), reinterpret_cast<Word*>(trial_.report_)};
  Word words[kMostWords];
  for (unsigned i = 0; i < kWords[kernel]; ++i) words[i] = argument_word(lane_, number_, i);
  void* arguments[] = {&identity, &words[0], &words[1], &words[2]};
  const CUDA_KERNEL_NODE_PARAMS params = node_params(trial_.functions_.kernel[kernel], arguments, kThreads);
  CU(cuGraphExecKernelNodeSetParams(chain.exec, chain.kernels[node], &params));
}

void Lane::launch(std::mt19937& random) {
  const bool is_locked = trial_.options_.lock == "all" || (trial_.options_.lock == "primary" && green_ == nullptr);
  const Chain& chain = chains_[random() % kLongestChain];
  unsigned value = ++chains_launched_;
  while (trial_.change_waits_ != 0) std::this_thread::yield();
  const std::shared_lock changes(trial_.changes_);
  push();
  {
    std::unique_lock lock(trial_.set_mutex_, std::defer_lock);
    if (is_locked) lock.lock();
    for (unsigned node = 0; node < chain.kernels.size(); ++node) set(chain, node, static_cast<unsigned>(random() % kKernels));
    auto* word = const_cast<unsigned*>(word_);
    void* arguments[] = {&word, &value};
    const CUDA_KERNEL_NODE_PARAMS params = node_params(trial_.functions_.write_word, arguments, 1);
    CU(cuGraphExecKernelNodeSetParams(chain.exec, chain.writer, &params));
  }
  {
    std::unique_lock lock(trial_.launch_mutex_, std::defer_lock);
    if (green_ == nullptr) lock.lock();
    CU(cuGraphLaunch(chain.exec, stream_));
  }
  pop();
}

void Lane::run(unsigned seed) {
  std::mt19937 random(seed);
  CU(cuCtxSetCurrent(trial_.context_));
  while (!trial_.stop_) {
    launch(random);
    const unsigned may_be_left = random() % 8 == 0 ? 0 : kMostUnderWay;
    while (chains_launched_ - *word_ > may_be_left) std::this_thread::yield();
  }
  while (*word_ != chains_launched_) std::this_thread::yield();
}

Trial::Trial(const Options& options) : options_(options) {
  std::ifstream file(MPSSHIM_SHARED_FUNCTIONS_IMAGE, std::ios::binary);
  image_.assign(std::istreambuf_iterator<char>(file), {});
  require(!image_.empty(), "no image at " MPSSHIM_SHARED_FUNCTIONS_IMAGE);
  CU(cuInit(0));
  CU(cuDevicePrimaryCtxRetain(&context_, 0));
  CU(cuCtxSetCurrent(context_));
  functions_ = load(image_);
  CU(cuMemAlloc(&report_, sizeof(Report)));
  CU(cuMemsetD8(report_, 0, sizeof(Report)));
  const unsigned count = options_.greens + options_.primaries;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&words_), std::size_t{64} * count, 0));
  std::memset(words_, 0, std::size_t{64} * count);
  for (unsigned i = 0; i < count; ++i) lanes_.push_back(std::make_unique<Lane>(*this, i, i < options_.greens));
}

void Trial::disturb(const std::function<void(std::mt19937&)>& act) {
  std::mt19937 random(options_.seed);
  CU(cuCtxSetCurrent(context_));
  while (!stop_) {
    {
      std::unique_lock lock(changes_, std::defer_lock);
      if (options_.exclusively) {
        ++change_waits_;
        lock.lock();
        --change_waits_;
      }
      act(random);
      ++changes_made_;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

int Trial::run() {
  std::vector<std::thread> threads;
  std::mt19937 random(options_.seed);
  const auto some = [this](std::mt19937& from) { return functions_.kernel[from() % kKernels]; };
  for (const auto& lane : lanes_) threads.emplace_back([&lane, seed = random()] { lane->run(static_cast<unsigned>(seed)); });
  if (options_.settings) {
    threads.emplace_back([&] {
      disturb([&](std::mt19937& from) {
        CU(cuFuncSetAttribute(some(from), CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, static_cast<int>(from() % 102) - 1));
        CU(cuFuncSetAttribute(some(from), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(from() % 48'000)));
      });
    });
  }
  if (options_.questions) {
    threads.emplace_back([&] {
      disturb([&](std::mt19937& from) {
        int blocks = 0;
        CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, some(from), 128, 1000));
      });
    });
  }
  if (options_.loads) {
    threads.emplace_back([&] {
      disturb([&](std::mt19937&) {
        const std::lock_guard lock(launch_mutex_);
        CU(cuModuleUnload(load(image_).module));
      });
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(options_.seconds));
  stop_ = true;
  for (std::thread& thread : threads) thread.join();
  std::uint64_t launches = 0;
  for (const auto& lane : lanes_) launches += lane->launches();
  const bool are_changes_wanted = options_.settings || options_.questions || options_.loads;
  require(!are_changes_wanted || changes_made_ > 100, "only " + std::to_string(changes_made_) + " changes were made: that proves nothing");
  return tell(launches);
}

int Trial::tell(std::uint64_t launches) const {
  Report report;
  CU(cuCtxSynchronize());
  CU(cuMemcpyDtoH(&report, report_, sizeof report));
  std::printf("%llu launches of %zu lanes, %llu changes, %llu findings\n", static_cast<unsigned long long>(launches), lanes_.size(),
              static_cast<unsigned long long>(changes_made_.load()), report.count);
  for (Word i = 0; i < report.count && i < kMostFindings; ++i) {
    const Finding& found = report.finding[i];
    const Word seen = found.seen ^ kMask;
    if (found.which == kOrder) {
      std::printf("  lane %llu, launch %llu: came after launch %llu\n", found.lane, found.number, found.seen);
    } else {
      std::printf("  lane %llu, launch %llu, word %llu: %llx, which is word %llu of launch %llu of lane %llu\n", found.lane, found.number,
                  found.which, found.seen, seen & 0xffff, seen >> 16 & 0xff'ffff'ffffull, seen >> 56);
    }
  }
  return report.count == 0 ? 0 : 1;
}

Options parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto next = [&] {
      require(i + 1 < count, word + " needs a value");
      return std::string(words[++i]);
    };
    if (word == "--greens")
      options.greens = static_cast<unsigned>(std::stoul(next()));
    else if (word == "--primaries")
      options.primaries = static_cast<unsigned>(std::stoul(next()));
    else if (word == "--seconds")
      options.seconds = std::stod(next());
    else if (word == "--seed")
      options.seed = static_cast<unsigned>(std::stoul(next()));
    else if (word == "--lock")
      options.lock = next();
    else if (word == "--settings")
      options.settings = true;
    else if (word == "--questions")
      options.questions = true;
    else if (word == "--loads")
      options.loads = true;
    else if (word == "--exclusively")
      options.exclusively = true;
    else
      throw Failure("unknown option " + word);
  }
  require(options.greens + options.primaries > 0 && options.greens + options.primaries <= 64, "there are to be 1 to 64 lanes");
  return options;
}

}  // namespace
}  // namespace mpsshim::test

int main(int count, char** words) {
  try {
    return mpsshim::test::Trial(mpsshim::test::parse(count, words)).run();
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "shared_functions: %s\n", failure.what());
    return 2;
  }
}
