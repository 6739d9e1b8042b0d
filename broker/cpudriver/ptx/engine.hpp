// SPDX-License-Identifier: Apache-2.0
//
// The PTX engine: executes kernels of a ModuleInstance on the CPU, 32 lanes an instruction.
//
// run() blocks until the launch has ended and may be called from any number of threads at once (one per stream).
// The calling thread executes blocks of its own launch; the engine's helper threads go round the running launches
// and give each a slice of time. So a kernel that never ends keeps its own caller and a share of the processors,
// and nobody else waits for it. Whatever a kernel does ends as a LaunchOutcome; it never takes the process down,
// provided the AddressMap tells the truth.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "broker/cpudriver/ptx/address_map.hpp"
#include "broker/cpudriver/ptx/fault.hpp"
#include "broker/cpudriver/ptx/module.hpp"

namespace mpsshim::ptx {

struct Dim3 {
  std::uint32_t x = 1;
  std::uint32_t y = 1;
  std::uint32_t z = 1;
};

struct LaunchConfig {
  const ModuleInstance* instance = nullptr;  // Must outlive the launch.
  std::uint32_t kernel = 0;                  // Index into module().kernels().
  Dim3 grid;
  Dim3 block;
  std::uint32_t dynamic_shared_bytes = 0;
  std::span<const std::byte> parameters;  // At least KernelInfo::parameter_bytes; copied before blocks run.
  bool is_cooperative = false;            // All blocks alive at once, grid barriers work.
  std::uint32_t stack_bytes = 1024;       // CU_LIMIT_STACK_SIZE: local memory of a thread for calls.
  std::uint64_t multiprocessors = 0;      // Those that %smid may name, a bit each; 0: all. For grids that the kernel launches, too.
};

// In-kernel malloc and free. Called from all of the engine's threads. The memory must be in the AddressMap.
class DeviceHeap {
 public:
  virtual ~DeviceHeap() = default;
  [[nodiscard]] virtual std::uint64_t allocate(std::uint64_t bytes) = 0;  // 0: no room, as CUDA answers.
  virtual void release(std::uint64_t address) = 0;
};

// What kernels ask the device runtime for and only the driver knows. Called from all of the engine's threads. Kernels are numbers as in
// LaunchConfig.
class DeviceRuntimeHost {
 public:
  virtual ~DeviceRuntimeHost() = default;
  // By cudaDeviceAttr and cudaLimit, whose numbers are the driver API's. False: there is none of that number.
  [[nodiscard]] virtual bool attribute(std::int32_t attribute, std::int32_t& value) const = 0;
  [[nodiscard]] virtual bool limit(std::int32_t limit, std::uint64_t& value) const = 0;
  [[nodiscard]] virtual std::int32_t device_count() const = 0;
  [[nodiscard]] virtual std::int32_t runtime_version() const = 0;
  [[nodiscard]] virtual std::int32_t binary_version() const = 0;
  [[nodiscard]] virtual std::int32_t max_dynamic_shared_bytes(std::uint32_t kernel) const = 0;
  [[nodiscard]] virtual std::int32_t resident_blocks(std::uint32_t kernel, std::int32_t threads, std::uint64_t dynamic_shared_bytes) const = 0;
  // The host could launch it so.
  [[nodiscard]] virtual bool may_launch(std::uint32_t kernel, const Dim3& grid, const Dim3& block, std::uint32_t dynamic_shared_bytes) const = 0;
};

struct LaunchHooks {
  const AddressMap* memory = nullptr;           // Required.
  const std::atomic<bool>* cancel = nullptr;    // Set by anyone; seen within milliseconds. May be null.
  // Text of printf, and of failed assertions; one call at a time per launch. Empty: dropped.
  std::function<void(std::string_view)> print;
  std::function<void(std::string_view)> print_assertion;
  DeviceHeap* heap = nullptr;                   // Null: malloc in a kernel returns 0.
  // Sets a graph's condition; from all of the engine's threads. False: there is no such handle. Empty: there are none.
  std::function<bool(std::uint64_t handle, std::uint32_t value)> set_condition;
  const DeviceRuntimeHost* runtime_host = nullptr;  // Null: kernels that ask for facts are told that there are none.
};

struct EngineOptions {
  std::uint32_t thread_count = 0;      // Helpers besides the callers. 0: one less than the processors.
  bool use_baseline_isa = false;       // For tests: the x86-64 handlers although the processor has AVX2 and FMA.
  std::uint32_t multiprocessors = 16;  // What %nsmid says, and the bound of %smid.
};

class Engine {
 public:
  static constexpr std::uint32_t kMaxThreadsPerBlock = 1024;
  static constexpr std::uint32_t kMaxSharedBytes = 227 * 1024;
  static constexpr std::uint32_t kMaxCooperativeBlocks = 1024;

  explicit Engine(const EngineOptions& options = {});
  ~Engine();  // No run() may be under way.
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Also runs all that the kernel's threads have launched, and what descends from that.
  [[nodiscard]] LaunchOutcome run(const LaunchConfig& config, const LaunchHooks& hooks);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mpsshim::ptx
