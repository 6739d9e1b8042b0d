// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/modules/launch.hpp"

#include "broker/cpudriver/graphs/condition.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "broker/cpudriver/config.hpp"
#include "broker/cpudriver/context/context.hpp"
#include "broker/cpudriver/device/attributes.hpp"
#include "broker/cpudriver/memory/device_heap.hpp"
#include "broker/cpudriver/memory/memory_map.hpp"
#include "broker/cpudriver/modules/device_runtime_host.hpp"
#include "broker/cpudriver/ptx/engine.hpp"

namespace mpsshim::cpudriver {
namespace {

ptx::Engine& engine() {
  // Leaked: kernels may still run while static destructors do. 0 would mean "as many as processors", so 1 at least.
  static ptx::Engine& engine =
      *new ptx::Engine({.thread_count = std::max(1u, Config::get().threads - 1), .use_baseline_isa = false, .multiprocessors = kMultiprocessors});
  return engine;
}

bool is_within(const unsigned (&size)[3], const CUdevice_attribute (&limits)[3]) {
  for (int i = 0; i < 3; ++i) {
    if (size[i] == 0 || size[i] > static_cast<unsigned>(attribute_of(limits[i]))) return false;
  }
  return true;
}

CUresult check_cooperative(const Function& function, const LaunchShape& shape, int threads) {
  const auto resident = static_cast<std::uint64_t>(resident_blocks(function, threads, shape.dynamic_shared_bytes));
  const std::uint64_t blocks = std::uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
  const unsigned multiprocessors = shape.multiprocessors != 0 ? static_cast<unsigned>(std::popcount(shape.multiprocessors)) : kMultiprocessors;
  return blocks <= resident * multiprocessors ? CUDA_SUCCESS : CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

}  // namespace

CUresult check_shape(const Function& function, const LaunchShape& shape) {
  constexpr CUdevice_attribute kGrid[3] = {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                                           CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z};
  constexpr CUdevice_attribute kBlock[3] = {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                                            CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z};
  if (!is_within(shape.grid, kGrid) || !is_within(shape.block, kBlock)) return CUDA_ERROR_INVALID_VALUE;
  const unsigned threads = shape.block[0] * shape.block[1] * shape.block[2];
  const ptx::KernelInfo& kernel = function.info();
  if (threads > ptx::Engine::kMaxThreadsPerBlock || threads > kernel.max_threads_per_block) return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < 3; ++i) {
    if (kernel.required_block[i] != 0 && kernel.required_block[i] != shape.block[i]) return CUDA_ERROR_INVALID_VALUE;
  }
  if (shape.dynamic_shared_bytes > static_cast<unsigned>(function.max_dynamic_shared_bytes())) return CUDA_ERROR_INVALID_VALUE;
  return shape.is_cooperative ? check_cooperative(function, shape, static_cast<int>(threads)) : CUDA_SUCCESS;
}

namespace {

// Text of printf goes where the process's standard output goes, that of assertions to its standard error, as with the real driver.
void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}
void print_assertion(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace

CUresult KernelLaunch::make(std::shared_ptr<Function> function, const LaunchShape& shape, void** parameters, void** extra, KernelLaunch& launch) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult checked = check_shape(*function, shape);
  if (checked != CUDA_SUCCESS) return checked;
  launch.function_ = std::move(function);
  launch.shape_ = shape;
  return launch.copy_arguments(parameters, extra);
}

CUresult KernelLaunch::copy_arguments(void** parameters, void** extra) {
  const ptx::KernelInfo& kernel = function_->info();
  arguments_.assign(kernel.parameter_bytes, std::byte{0});
  if (parameters != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (kernel.parameter_bytes == 0) return CUDA_SUCCESS;
  if (parameters != nullptr) {
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
      if (parameters[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      std::memcpy(arguments_.data() + kernel.parameters[i].offset, parameters[i], kernel.parameters[i].size);
    }
    return CUDA_SUCCESS;
  }
  const void* buffer = nullptr;
  std::size_t bytes = 0;
  for (void** entry = extra; entry != nullptr && *entry != CU_LAUNCH_PARAM_END; entry += 2) {
    if (*entry == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = entry[1];
    } else if (*entry == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      bytes = *static_cast<const std::size_t*>(entry[1]);
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (buffer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kernel.parameter_bytes) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  std::memcpy(arguments_.data(), buffer, bytes);  // measured: too few are taken
  return CUDA_SUCCESS;
}

CUresult KernelLaunch::run() const {
  Scheduler& scheduler = Scheduler::get();
  const Scheduler::Activity activity(scheduler);
  ptx::LaunchConfig config;
  config.instance = &function_->module()->instance();
  config.kernel = function_->index();
  config.grid = {shape_.grid[0], shape_.grid[1], shape_.grid[2]};
  config.block = {shape_.block[0], shape_.block[1], shape_.block[2]};
  config.dynamic_shared_bytes = shape_.dynamic_shared_bytes;
  config.parameters = arguments_;
  config.is_cooperative = shape_.is_cooperative;
  config.multiprocessors = shape_.multiprocessors;
  config.stack_bytes = static_cast<std::uint32_t>(Context::primary().stack_bytes());
  ptx::LaunchHooks hooks;
  hooks.memory = &MemoryMap::get();
  hooks.cancel = &scheduler.cancelled();
  hooks.print = print;
  hooks.print_assertion = print_assertion;
  hooks.heap = &DeviceHeap::get();
  hooks.set_condition = [](std::uint64_t handle, std::uint32_t value) { return Conditions::get().set(handle, value); };
  const DeviceRuntimeHost host(*function_->module());
  hooks.runtime_host = &host;
  const ptx::LaunchOutcome outcome = engine().run(config, hooks);
  if (outcome.fault == ptx::Fault::none || outcome.fault == ptx::Fault::cancelled) return CUDA_SUCCESS;
  std::fprintf(stderr, "cuda_cpu: %s\n", outcome.text.c_str());
  return static_cast<CUresult>(outcome.fault);
}

Operation as_operation(KernelLaunch launch) {
  Operation operation;
  operation.is_launch = true;
  operation.run = [shared = std::make_shared<const KernelLaunch>(std::move(launch))] { return shared->run(); };
  return operation;
}

void bring_to_device(Function& function) {
  if (!function.take_first_use()) return;
  const Scheduler::QuietWindow window(Scheduler::get(), false);
}

}  // namespace mpsshim::cpudriver
