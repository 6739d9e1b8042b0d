// SPDX-License-Identifier: Apache-2.0
#include "tests/reliability/held_kinds.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "tests/process/programs/held_objects.hpp"
#include "tests/reliability/fault_kernels.hpp"

namespace mpsshim::test {

namespace {

constexpr std::size_t kChunks = 64;
constexpr std::size_t kStreams = 16;
constexpr unsigned kPinnedWords = 100'000;

// No CPU driver: with it, kernels over much memory take longer than a broker waits for them.
bool is_fast() {
  char name[128] = "";
  CU(cuDeviceGetName(name, sizeof name, 0));
  return std::string(name).find("CPU") == std::string::npos;
}

class HeldEverything final : public Held {
 public:
  explicit HeldEverything(const Device& device) : objects_(device, is_fast() ? HeldObjects::kLargestWords : 60'001) {}
  void use() override {
    objects_.check();
    objects_.use();
  }

 private:
  HeldObjects objects_;
};

// 1 GiB on a GPU, a few megabytes on the CPU driver.
class HeldMemory final : public Held {
 public:
  explicit HeldMemory(const Device& device) : device_(device) {
    const std::size_t words = is_fast() ? (std::size_t{16} << 20) / sizeof(unsigned) : 20'000;
    for (std::size_t i = 0; i < kChunks; ++i) chunks_.emplace_back(words, static_cast<unsigned>(i));
  }
  void use() override {
    for (Words& chunk : chunks_) {
      CU(device_.launch_add(chunk.address, chunk.count(), 3));
      chunk.add(3);
    }
    for (const Words& chunk : chunks_) chunk.check();
  }

 private:
  const Device& device_;
  std::vector<Words> chunks_;
};

class HeldPinned final : public Held {
 public:
  explicit HeldPinned(const Device& device) : device_(device) {
    CU(cuMemHostAlloc(reinterpret_cast<void**>(&pinned_), kPinnedWords * sizeof(unsigned), CU_MEMHOSTALLOC_PORTABLE));
    for (unsigned i = 0; i < kPinnedWords; ++i) expected_.push_back(i * 7 + 1);
    std::copy(expected_.begin(), expected_.end(), pinned_);
    use();
  }
  void use() override {
    check_words("pinned memory", pinned_, expected_);
    CUdeviceptr mapped = 0;
    CU(cuMemHostGetDevicePointer(&mapped, pinned_, 0));
    CU(device_.launch_add(mapped, kPinnedWords, 5));
    CU(cuCtxSynchronize());
    for (unsigned& word : expected_) word += 5;
    check_words("pinned memory", pinned_, expected_);
  }

 private:
  const Device& device_;
  unsigned* pinned_ = nullptr;
  std::vector<unsigned> expected_;
};

class HeldStreams final : public Held {
 public:
  explicit HeldStreams(const Device& device) : device_(device) {
    for (std::size_t i = 0; i < kStreams; ++i) {
      CU(cuStreamCreate(&streams_.emplace_back(), i % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
      CU(cuEventCreate(&events_.emplace_back(), CU_EVENT_DISABLE_TIMING));
      CU(cuEventRecord(events_.back(), streams_.back()));
      words_.emplace_back(5'000, static_cast<unsigned>(i));
    }
    use();
  }
  // Each stream works on all words in turn, one behind the other by their events.
  void use() override {
    for (std::size_t i = 0; i < kStreams; ++i) {
      CU(cuStreamWaitEvent(streams_[i], events_[(i + kStreams - 1) % kStreams], 0));
      for (Words& words : words_) {
        CU(device_.launch_add(words.address, words.count(), static_cast<unsigned>(i), streams_[i]));
        words.add(static_cast<unsigned>(i));
      }
      CU(cuEventRecord(events_[i], streams_[i]));
    }
    CU(cuEventSynchronize(events_.back()));
    for (const CUstream stream : streams_) CU(cuStreamQuery(stream));
    for (const Words& words : words_) words.check();
  }

 private:
  const Device& device_;
  std::vector<CUstream> streams_;
  std::vector<CUevent> events_;
  std::vector<Words> words_;
};

// What a kernel has counted up.
class HeldVariables final : public Held {
 public:
  explicit HeldVariables(const Device&) {
    CUmodule module = nullptr;
    std::size_t bytes = 0;
    CU(cuModuleLoadData(&module, kGlobalPtx));
    CU(cuModuleGetFunction(&count_, module, "count"));
    CU(cuModuleGetGlobal(&counter_, &bytes, module, "counter"));
    CU(cuMemAlloc(&out_, sizeof(unsigned)));
    count_up();
    // Idle for a while, as a program is that computes elsewhere or asks its user: twenty times what the executor needs to notice.
    CU(cuCtxSynchronize());
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  }
  void use() override {
    unsigned value = 0;
    CU(cuMemcpyDtoH(&value, counter_, sizeof value));
    require(value == counted_, "wrong: the variable is " + std::to_string(value) + " and not " + std::to_string(counted_));
    count_up();
  }

 private:
  void count_up() {
    for (int i = 0; i < 3; ++i) {
      void* arguments[] = {&out_};
      CU(cuLaunchKernel(count_, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
      unsigned value = 0;
      CU(cuMemcpyDtoH(&value, out_, sizeof value));
      require(value == ++counted_, "wrong: the variable does not count on");
    }
  }

  CUfunction count_ = nullptr;
  CUdeviceptr counter_ = 0;
  CUdeviceptr out_ = 0;
  unsigned counted_ = 5;
};

// What a kernel has left in memory and another one finds through it: 42.
class HeldAddress : public Held {
 public:
  HeldAddress(CUmodule module, const char* maker, const char* user) : module_(module), user_(user) {
    CU(cuMemAlloc(&memory_, 2 * sizeof(CUdeviceptr)));
    launch_one(module_, maker, memory_);
    use();
  }
  void use() final {
    launch_one(module_, user_, memory_, memory_ + sizeof(CUdeviceptr));
    int result = 0;
    CU(cuMemcpyDtoH(&result, memory_ + sizeof(CUdeviceptr), sizeof result));
    require(result == 42, std::string("wrong: ") + user_ + " gives " + std::to_string(result) + " and not 42");
  }

 private:
  CUmodule module_;
  const char* user_;
  CUdeviceptr memory_ = 0;
};

class HeldFunctions final : public HeldAddress {
 public:
  explicit HeldFunctions(const Device&) : HeldAddress(load_kernels(), "take_address", "call_stored") {}
};

class HeldHeap final : public HeldAddress {
 public:
  explicit HeldHeap(const Device&) : HeldAddress(load_heap_kernels(), "allocate", "read_back") {}
};

class HeldTimes final : public Held {
 public:
  explicit HeldTimes(const Device& device) : words_(5'000, 1) {
    for (CUevent& event : events_) CU(cuEventCreate(&event, CU_EVENT_DEFAULT));
    CU(cuEventRecord(events_[0], nullptr));
    for (int i = 0; i < 20; ++i) CU(device.launch_add(words_.address, words_.count(), 1));
    CU(cuEventRecord(events_[1], nullptr));
    CU(cuCtxSynchronize());
    between_ms_ = elapsed_ms();
  }
  void use() override {
    CU(cuEventSynchronize(events_[0]));
    const float now_ms = elapsed_ms();
    require(std::abs(now_ms - between_ms_) < 1e-3F,
            "wrong: the events are " + std::to_string(now_ms) + " ms apart and not " + std::to_string(between_ms_));
  }

 private:
  float elapsed_ms() const {
    float between_ms = -1;
    CU(cuEventElapsedTime(&between_ms, events_[0], events_[1]));
    return between_ms;
  }

  Words words_;
  CUevent events_[2] = {};
  float between_ms_ = 0;
};

template <typename Kind>
std::unique_ptr<Held> make(const Device& device) {
  return std::make_unique<Kind>(device);
}

}  // namespace

std::unique_ptr<Held> hold(const std::string& kind, const Device& device) {
  static const std::map<std::string, std::function<std::unique_ptr<Held>(const Device&)>> makers = {
      {"idle", make<HeldEverything>},     {"memory", make<HeldMemory>},       {"pinned", make<HeldPinned>}, {"streams", make<HeldStreams>},
      {"variables", make<HeldVariables>}, {"functions", make<HeldFunctions>}, {"heap", make<HeldHeap>},     {"timed", make<HeldTimes>},
  };
  const auto maker = makers.find(kind);
  return maker == makers.end() ? nullptr : maker->second(device);
}

}  // namespace mpsshim::test
