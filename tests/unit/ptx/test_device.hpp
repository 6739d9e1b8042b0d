// SPDX-License-Identifier: Apache-2.0
// A device for tests of the PTX engine: buffers that kernels may touch, one loaded image, and launches. A test owns
// it; buffers may be made from any thread between launches.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "broker/cpudriver/ptx/engine.hpp"
#include "tests/support/catch.hpp"

namespace mpsshim::ptx::test {

class TestMemory final : public AddressMap {
 public:
  AddressRange find(std::uint64_t address) const override {
    const std::lock_guard lock(mutex_);
    for (const AddressRange& range : ranges_) {
      if (address >= range.begin && address < range.end) return range;
    }
    return {};
  }
  std::uint64_t generation() const override { return generation_.load(); }

  void add(const void* memory, std::size_t bytes, bool is_writable = true) {
    const std::lock_guard lock(mutex_);
    const auto begin = reinterpret_cast<std::uint64_t>(memory);
    ranges_.push_back({begin, begin + bytes, is_writable});
    ++generation_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<AddressRange> ranges_;
  std::atomic<std::uint64_t> generation_{1};
};

// Memory of one element type, visible to kernels as long as it lives with its TestMemory.
template <class T>
class Buffer {
 public:
  Buffer(TestMemory& memory, std::size_t count, T value = T{}) : data_(count, value) { memory.add(data_.data(), count * sizeof(T)); }
  T& operator[](std::size_t i) { return data_[i]; }
  T* data() { return data_.data(); }
  const T* data() const { return data_.data(); }
  std::size_t size() const { return data_.size(); }
  operator std::uint64_t() const { return reinterpret_cast<std::uint64_t>(data_.data()); }

 private:
  std::vector<T> data_;
};

inline std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Parameters with natural alignment, as kernels declare them.
class Parameters {
 public:
  template <class... T>
  explicit Parameters(const T&... values) {
    (add(values), ...);
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  template <class T>
  void add(const T& value) {
    if constexpr (requires { value.data(); }) {
      add(static_cast<std::uint64_t>(value));
    } else {
      bytes_.resize((bytes_.size() + alignof(T) - 1) / alignof(T) * alignof(T) + sizeof(T));
      std::memcpy(bytes_.data() + bytes_.size() - sizeof(T), &value, sizeof(T));
    }
  }
  std::vector<std::byte> bytes_;
};

class TestDevice {
 public:
  explicit TestDevice(const EngineOptions& options = {.thread_count = 2}) : engine(options) {}

  void load(std::vector<std::string> texts) {
    std::vector<std::string_view> views(texts.begin(), texts.end());
    Error error;
    module = compile(views, error);
    INFO(error.text);
    REQUIRE(module != nullptr);
    std::vector<std::uint64_t> addresses;
    for (const GlobalInfo& global : module->globals()) {
      globals.push_back(std::make_unique<std::vector<std::uint64_t>>(global.size / 8 + 2));
      memory.add(globals.back()->data(), global.size, global.space == GlobalSpace::global);
      addresses.push_back(reinterpret_cast<std::uint64_t>(globals.back()->data()));
    }
    instance = std::make_unique<ModuleInstance>(module, addresses);
    for (std::uint32_t i = 0; i < addresses.size(); ++i) instance->write_initial(i, globals[i]->data());
  }

  LaunchConfig config(std::string_view kernel, Dim3 grid, Dim3 block) const {
    const auto index = module->find_kernel(kernel);
    INFO(kernel);
    REQUIRE(index.has_value());
    LaunchConfig result;
    result.instance = instance.get();
    result.kernel = *index;
    result.grid = grid;
    result.block = block;
    return result;
  }

  LaunchHooks hooks() {
    LaunchHooks result;
    result.memory = &memory;
    result.cancel = &cancel;
    result.print = [this](std::string_view text) { printed += text; };
    result.print_assertion = result.print;
    return result;
  }

  LaunchOutcome try_launch(std::string_view kernel, Dim3 grid, Dim3 block, const Parameters& parameters, std::uint32_t dynamic_shared = 0,
                           bool is_cooperative = false) {
    LaunchConfig launch = config(kernel, grid, block);
    launch.parameters = parameters.bytes();
    launch.dynamic_shared_bytes = dynamic_shared;
    launch.is_cooperative = is_cooperative;
    return engine.run(launch, hooks());
  }

  LaunchOutcome launch(std::string_view kernel, Dim3 grid, Dim3 block, const Parameters& parameters, std::uint32_t dynamic_shared = 0,
                       bool is_cooperative = false) {
    LaunchOutcome outcome = try_launch(kernel, grid, block, parameters, dynamic_shared, is_cooperative);
    INFO(outcome.text);
    REQUIRE(outcome.fault == Fault::none);
    return outcome;
  }

  Engine engine;
  TestMemory memory;
  std::atomic<bool> cancel{false};
  std::string printed;
  std::shared_ptr<const Module> module;
  std::unique_ptr<ModuleInstance> instance;
  std::vector<std::unique_ptr<std::vector<std::uint64_t>>> globals;
};

// How a text begins that a test writes in full.
inline const std::string kHead = ".version 8.0\n.target sm_90\n.address_size 64\n";

// A kernel `k` around hand-written instructions: parameters out, a, b, c (all .u64), registers of every kind, and
// %r1 = the thread's index in the grid, %rd1 = &out[4 * index], %rd2 = &out[8 * index].
inline std::string kernel_text(const std::string& body, const std::string& outside = "") {
  return ".version 8.0\n.target sm_75\n.address_size 64\n" + outside +
         "\n.visible .entry k(.param .u64 out, .param .u64 a, .param .u64 b, .param .u64 c)\n{\n"
         ".reg .pred %p<16>;\n.reg .b16 %rs<16>;\n.reg .b32 %r<64>;\n.reg .b64 %rd<64>;\n.reg .f32 %f<32>;\n.reg .f64 %fd<32>;\n"
         "mov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmov.u32 %r4, %tid.x;\nmad.lo.s32 %r1, %r2, %r3, %r4;\n"
         "ld.param.u64 %rd3, [out];\nmul.wide.u32 %rd4, %r1, 4;\nadd.s64 %rd1, %rd3, %rd4;\nmul.wide.u32 %rd5, %r1, 8;\nadd.s64 %rd2, %rd3, %rd5;\n" +
         body + "\nret;\n}\n";
}

}  // namespace mpsshim::ptx::test
