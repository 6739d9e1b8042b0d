// SPDX-License-Identifier: Apache-2.0
//
// Engine: checks a launch, runs it on the caller's thread, and has helper threads lend slices round-robin.
#include "broker/cpudriver/ptx/engine.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "broker/cpudriver/ptx/form.hpp"
#include "broker/cpudriver/ptx/launch.hpp"
#include "proto/cond_var.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::ptx {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kResidentBlocks = 64;         // Of a launch that is not cooperative, besides those running.
constexpr std::uint32_t kMaxLocalBytes = 512 * 1024;  // Of a thread, as on every device so far.
constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{4} << 30;
constexpr std::uint64_t kResidentBytes = std::uint64_t{1} << 30;  // State of the blocks kept beside those running.
constexpr auto kIdlePoll = 1ms;                                   // How soon a caller sees a cancellation while only helpers run blocks.

LaunchOutcome refuse(const std::string& kernel, Fault fault, const std::string& why) {
  LaunchOutcome outcome;
  outcome.fault = fault;
  outcome.kernel = kernel;
  outcome.text = "Kernel '" + kernel + "' was not launched: " + why;
  return outcome;
}

// What a thread does whose turns find nothing but blocks that wait for other blocks, other kernels or the host: whom they wait for may need this
// processor. It rests an eighth of the time that this has gone on for, so what they wait for is seen by so much later.
class Rest {
 public:
  void after(Ran ran) {
    if (ran != Ran::waiting) {
      is_waiting_ = false;
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    if (!std::exchange(is_waiting_, true)) since_ = now;
    const auto rest = std::min<std::chrono::steady_clock::duration>((now - since_) / kShare, kLongest);
    if (rest >= kShortest) {
      std::this_thread::sleep_for(rest);
    } else {
      std::this_thread::yield();
    }
  }

 private:
  static constexpr int kShare = 8;
  static constexpr auto kShortest = 20us;
  static constexpr auto kLongest = 500us;

  bool is_waiting_ = false;
  std::chrono::steady_clock::time_point since_{};
};

std::uint64_t volume(const Dim3& d) { return std::uint64_t{d.x} * d.y * d.z; }

}  // namespace

class Engine::Impl {
 public:
  explicit Impl(const EngineOptions& options)
      : isa_(!options.use_baseline_isa && processor_has_v3() ? Isa::v3 : Isa::baseline), multiprocessors_(std::max(1U, options.multiprocessors)) {
    std::uint32_t count = options.thread_count;
    if (count == 0) count = std::max(1U, std::thread::hardware_concurrency()) - 1;
    sigset_t all;
    sigset_t before;
    sigfillset(&all);  // Signals belong to the host program's threads.
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (std::uint32_t i = 0; i < count; ++i) helpers_.emplace_back([this] { help(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      is_closing_ = true;
    }
    wake_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }

  LaunchOutcome run(const LaunchConfig& config, const LaunchHooks& hooks) {
    if (config.instance->module().program().uses_device_runtime) return run_with_descendants(config, hooks);
    PendingWork none;
    return run_grid(config, hooks, nullptr, none);
  }

 private:
  // Depth first: a grid is complete when all that it has launched is. A tail launch that is the last of its parent takes its place, so that
  // chains of them may be long.
  LaunchOutcome run_with_descendants(const LaunchConfig& config, const LaunchHooks& hooks) {
    DeviceRuntime runtime(hooks);
    if (!runtime.open()) return refuse(config.instance->module().kernels()[config.kernel].name, Fault::out_of_memory, "no memory for its launches");
    std::vector<PendingWork> path(1);
    LaunchOutcome outcome = run_grid(config, hooks, &runtime, path.back());
    while (outcome.fault == Fault::none && !path.empty()) {
      if (path.back().is_empty()) {
        path.pop_back();
        continue;
      }
      const bool is_tail = path.back().ordinary.empty();
      const Work work = path.back().take();
      runtime.note_begun();
      PendingWork pending;
      pending.depth = path.back().depth + (is_tail ? 0 : 1);
      if (path.back().is_empty()) path.pop_back();
      const std::uint64_t done = outcome.lane_instructions;
      if (const auto* grid = std::get_if<GridRequest>(&work)) {
        outcome = run_grid(child_config(config, *grid), hooks, &runtime, pending);
      } else {
        outcome = run_box(runtime, std::get<BoxRequest>(work), outcome.kernel);
      }
      outcome.lane_instructions += done;
      if (!pending.is_empty()) path.push_back(std::move(pending));
    }
    return outcome;
  }

  static LaunchConfig child_config(const LaunchConfig& root, const GridRequest& request) {
    LaunchConfig config = root;
    config.kernel = request.kernel;
    config.grid = request.grid;
    config.block = request.block;
    config.dynamic_shared_bytes = request.dynamic_shared_bytes;
    config.parameters = request.parameters;
    config.is_cooperative = false;
    return config;
  }

  static LaunchOutcome run_box(const DeviceRuntime& runtime, const BoxRequest& request, const std::string& kernel) {
    LaunchOutcome outcome;
    outcome.kernel = kernel;
    DeviceRuntime::BadAccess bad;
    if (runtime.perform(request, bad)) return outcome;
    outcome.fault = Fault::illegal_address;
    outcome.address = bad.address;
    outcome.is_write = bad.is_write;
    char where[64];
    std::snprintf(where, sizeof where, "illegal address 0x%" PRIx64 " (%s)", bad.address, bad.is_write ? "write" : "read");
    outcome.text = request.is_fill ? "A fill that a kernel has asked for: " : "A copy that a kernel has asked for: ";
    outcome.text += where;
    return outcome;
  }

  LaunchOutcome run_grid(const LaunchConfig& config, const LaunchHooks& hooks, DeviceRuntime* runtime, PendingWork& pending) {
    const Module& module = config.instance->module();
    const KernelInfo& kernel = module.kernels()[config.kernel];
    LaunchOutcome refused = check(config, kernel);
    if (refused.fault != Fault::none) return refused;
    auto launch = std::make_shared<Launch>();
    prepare(*launch, config, hooks, kernel);
    launch->runtime = runtime;
    launch->pending.depth = pending.depth;
    const bool has_helpers = launch->block_count > 1 && !helpers_.empty();
    if (has_helpers) announce(launch);
    work(*launch);
    if (has_helpers) withdraw(launch);
    launch->mutex.assume_held();  // no helper has it any more
    launch->outcome.kernel = kernel.name;
    pending = std::move(launch->pending);
    return std::move(launch->outcome);
  }

  static LaunchOutcome check(const LaunchConfig& config, const KernelInfo& kernel) {
    const std::uint64_t threads = volume(config.block);
    const auto is_bad = [](const Dim3& d) { return d.x == 0 || d.y == 0 || d.z == 0; };
    if (is_bad(config.grid) || is_bad(config.block) || config.grid.x > 0x7fffffff || config.grid.y > 65535 || config.grid.z > 65535)
      return refuse(kernel.name, Fault::invalid_value, "a dimension of grid or block is out of range");
    if (threads > kMaxThreadsPerBlock || config.block.x > 1024 || config.block.y > 1024 || config.block.z > 64)
      return refuse(kernel.name, Fault::invalid_value, "a block has at most 1024 threads (1024, 1024, 64)");
    if (threads > kernel.max_threads_per_block)
      return refuse(kernel.name, Fault::invalid_value, "its bound is " + std::to_string(kernel.max_threads_per_block) + " threads a block");
    const auto* required = kernel.required_block;
    if (required[0] != 0 && (required[0] != config.block.x || required[1] != config.block.y || required[2] != config.block.z))
      return refuse(kernel.name, Fault::invalid_value, "its .reqntid asks for another block shape");
    if (std::uint64_t{kernel.static_shared_bytes} + config.dynamic_shared_bytes > kMaxSharedBytes)
      return refuse(kernel.name, Fault::invalid_value, "it asks for more than " + std::to_string(kMaxSharedBytes) + " bytes of shared memory");
    if (config.parameters.size() < kernel.parameter_bytes)
      return refuse(kernel.name, Fault::invalid_value,
                    std::to_string(config.parameters.size()) + " bytes of parameters given, " + std::to_string(kernel.parameter_bytes) + " needed");
    if (config.is_cooperative && volume(config.grid) > kMaxCooperativeBlocks)
      return refuse(kernel.name, Fault::cooperative_too_large, "a cooperative grid has at most " + std::to_string(kMaxCooperativeBlocks) + " blocks");
    if (kernel.local_bytes > kMaxLocalBytes) return refuse(kernel.name, Fault::out_of_resources, "a thread has at most 512 KiB of local memory");
    const std::uint64_t blocks = config.is_cooperative ? volume(config.grid) : 1;
    if (block_bytes(config, kernel) * blocks > kMaxBlockBytes)
      return refuse(kernel.name, Fault::out_of_memory,
                    "the state of the blocks that must be alive at once takes more than 4 GiB; use smaller blocks");
    return {};
  }

  void prepare(Launch& launch, const LaunchConfig& config, const LaunchHooks& hooks, const KernelInfo& kernel) {
    const Program& program = config.instance->module().program();
    launch.config = config;
    launch.hooks = &hooks;
    launch.program = &program;
    launch.entry = &program.functions[program.kernel_functions[config.kernel]];
    launch.symbol_rows = symbol_rows(config.instance->bindings());
    launch.parameters.resize((std::size_t{kernel.parameter_bytes} + 15) & ~std::size_t{15});
    if (kernel.parameter_bytes != 0) std::memcpy(launch.parameters.data(), config.parameters.data(), kernel.parameter_bytes);
    if (config.is_cooperative) launch.workspace.resize(64);
    launch.isa = isa_;
    launch.grid_id = next_grid_id_.fetch_add(1, std::memory_order_relaxed);
    launch.block_count = volume(config.grid);
    launch.warps_per_block = static_cast<std::uint32_t>((volume(config.block) + kLanes - 1) / kLanes);
    const std::uint32_t align = launch.entry->dynamic_shared_align;
    launch.dynamic_shared_offset = (kernel.static_shared_bytes + align - 1) & ~(align - 1);
    launch.shared_bytes = launch.dynamic_shared_offset + config.dynamic_shared_bytes;
    if (program.uses_reserved_shared) {
      launch.reserved_shared_offset = (launch.shared_bytes + 15) & ~15U;
      launch.shared_bytes = launch.reserved_shared_offset + kReservedSharedBytes;
    }
    launch.local_stride = local_stride(config, kernel);
    const std::uint64_t affordable = std::max<std::uint64_t>(1, kResidentBytes / block_bytes(config, kernel));
    const auto threads = static_cast<std::uint32_t>(helpers_.size()) + 1;
    launch.resident_limit = threads + static_cast<std::uint32_t>(std::min<std::uint64_t>(kResidentBlocks, affordable));
    if (config.is_cooperative) launch.resident_limit = static_cast<std::uint32_t>(launch.block_count);
    launch.multiprocessors = multiprocessors_;
  }

  static std::uint32_t local_stride(const LaunchConfig& config, const KernelInfo& kernel) {
    const bool has_calls = !config.instance->module().program().calls.empty();
    const std::uint32_t stack = has_calls ? std::min(config.stack_bytes, kMaxLocalBytes) : 0;
    return (kernel.local_bytes + stack + 15) & ~15U;
  }

  // The memory of one block's state: registers, local and shared memory.
  static std::uint64_t block_bytes(const LaunchConfig& config, const KernelInfo& kernel) {
    const Program& program = config.instance->module().program();
    const std::uint64_t frame = program.functions[program.kernel_functions[config.kernel]].frame_bytes;
    const std::uint64_t warps = (volume(config.block) + kLanes - 1) / kLanes;
    return warps * (frame + std::uint64_t{local_stride(config, kernel)} * kLanes + special_offset(Special::end_)) + kernel.static_shared_bytes +
           config.dynamic_shared_bytes;
  }

  // The calling thread: until all blocks are done, run what there is, else wait for the helpers.
  static void work(Launch& launch) {
    Worker worker;
    Rest rest;
    for (;;) {
      const Ran ran = run_some(launch, worker);
      rest.after(ran);
      if (ran != Ran::nothing) continue;
      std::unique_lock lock(launch.mutex);
      if (is_done(launch)) return;
      launch.progress.wait_for(lock, kIdlePoll);
    }
  }

  void announce(const std::shared_ptr<Launch>& launch) {
    {
      const std::lock_guard lock(mutex_);
      launches_.push_back(launch);
    }
    wake_.notify_all();
  }

  // After this no helper begins a slice of the launch, and none is inside one.
  void withdraw(const std::shared_ptr<Launch>& launch) {
    std::unique_lock lock(mutex_);
    std::erase(launches_, launch);
    left_.wait(lock, [&] { return launch.use_count() == 1; });
  }

  void help() {
    Worker worker;
    Rest rest;
    std::size_t turn = 0;
    std::size_t idle = 0;
    std::unique_lock lock(mutex_);
    while (!is_closing_) {
      if (launches_.empty()) {
        wake_.wait(lock);
        idle = 0;
        continue;
      }
      std::shared_ptr<Launch> launch = launches_[turn++ % launches_.size()];
      lock.unlock();
      const Ran ran = run_some(*launch, worker);
      lock.lock();
      worker.launch = nullptr;  // Another launch may come to lie at the same address.
      launch.reset();
      left_.notify_all();
      lock.unlock();
      rest.after(ran);
      lock.lock();
      idle = ran != Ran::nothing ? 0 : idle + 1;
      if (idle > launches_.size()) wake_.wait_for(lock, kIdlePoll);
    }
  }

  const Isa isa_;
  const std::uint32_t multiprocessors_;
  std::atomic<std::uint64_t> next_grid_id_{1};
  Mutex mutex_;  // Guards what follows.
  CondVar wake_;
  CondVar left_;
  std::vector<std::shared_ptr<Launch>> launches_ GUARDED_BY(mutex_);
  bool is_closing_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> helpers_;  // as the constructor has made them
};

Engine::Engine(const EngineOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Engine::~Engine() = default;

LaunchOutcome Engine::run(const LaunchConfig& config, const LaunchHooks& hooks) { return impl_->run(config, hooks); }

}  // namespace mpsshim::ptx
