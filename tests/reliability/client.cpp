// SPDX-License-Identifier: Apache-2.0
// The clients of the reliability scenarios, guilty ones and bystanders: a command a line, an answer a line.
//
//   hold KIND            makes what a bystander of that kind has
//   go_on KIND [MS]      goes on with it, everything checked. Idle kinds answer "ok STAMP", the time their first launch was complete; busy and
//                        waiting ones work for MS milliseconds and answer "ok PAUSE", the longest time without a completed launch in ms
//   ready                has loaded what faults need
//   fault KIND           "STAMP ERROR": launched at that time, and what the wait for it gave
//   work, spin, idle     leaves launches under way, a kernel without end, nothing
//   probe ERROR          "ok" where each of some simple calls, here and in another thread, gives that error
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "tests/process/programs/conversation.hpp"
#include "tests/process/programs/held_objects.hpp"
#include "tests/reliability/fault_kernels.hpp"

namespace mpsshim::test {
namespace {

constexpr std::size_t kChunks = 64;
constexpr std::size_t kStreams = 16;
constexpr unsigned kPinnedWords = 100'000;

std::int64_t stamp() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

class ReliabilityClient {
 public:
  std::string answer(const std::string& line);

 private:
  std::string hold(const std::string& kind);
  std::string go_on(const std::string& kind, int duration_ms);
  void hold_memory();
  void hold_streams();
  void hold_pinned();
  void use_memory();
  void use_streams();
  void use_pinned();
  void hold_variables();
  void use_variables();
  void hold_functions();
  void use_functions();
  void hold_heap();
  void use_heap();
  void hold_timed();
  void use_timed();
  std::string stay_busy(int duration_ms);
  std::string wait_for_own_kernel(int duration_ms);
  std::string leave_at_work();
  std::string spin();
  void probe(CUresult wanted);
  unsigned count();

  Device device_;
  std::optional<FaultKernels> faults_;
  std::unique_ptr<Words> first_;  // what the launch works on that ends the clock
  std::optional<HeldObjects> held_;
  std::vector<Words> chunks_;
  std::vector<CUstream> streams_;
  std::vector<CUevent> events_;
  std::vector<unsigned> pinned_expected_;
  unsigned* pinned_ = nullptr;
  CUmodule kernels_ = nullptr;
  CUfunction count_ = nullptr;
  CUdeviceptr counter_ = 0;
  CUdeviceptr out_ = 0;
  unsigned counted_ = 5;
  float between_ms_ = 0;
};

// No CPU driver: with it, kernels over much memory take longer than a broker waits for them.
bool is_fast() {
  char name[128] = "";
  CU(cuDeviceGetName(name, sizeof name, 0));
  return std::string(name).find("CPU") == std::string::npos;
}

// 1 GiB on a GPU, a few megabytes on the CPU driver.
void ReliabilityClient::hold_memory() {
  const std::size_t words = is_fast() ? (std::size_t{16} << 20) / sizeof(unsigned) : 20'000;
  for (std::size_t i = 0; i < kChunks; ++i) chunks_.emplace_back(words, static_cast<unsigned>(i));
}

void ReliabilityClient::use_memory() {
  for (Words& chunk : chunks_) {
    CU(device_.launch_add(chunk.address, chunk.count(), 3));
    chunk.add(3);
  }
  for (const Words& chunk : chunks_) chunk.check();
}

void ReliabilityClient::hold_streams() {
  for (std::size_t i = 0; i < kStreams; ++i) {
    CU(cuStreamCreate(&streams_.emplace_back(), i % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
    CU(cuEventCreate(&events_.emplace_back(), CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(events_.back(), streams_.back()));
    chunks_.emplace_back(5'000, static_cast<unsigned>(i));
  }
  use_streams();
}

// Each stream works on all chunks in turn, one behind the other by their events.
void ReliabilityClient::use_streams() {
  for (std::size_t i = 0; i < kStreams; ++i) {
    CU(cuStreamWaitEvent(streams_[i], events_[(i + kStreams - 1) % kStreams], 0));
    for (Words& chunk : chunks_) {
      CU(device_.launch_add(chunk.address, chunk.count(), static_cast<unsigned>(i), streams_[i]));
      chunk.add(static_cast<unsigned>(i));
    }
    CU(cuEventRecord(events_[i], streams_[i]));
  }
  CU(cuEventSynchronize(events_.back()));
  for (const CUstream stream : streams_) CU(cuStreamQuery(stream));
  for (const Words& chunk : chunks_) chunk.check();
}

void ReliabilityClient::hold_pinned() {
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&pinned_), kPinnedWords * sizeof(unsigned), CU_MEMHOSTALLOC_PORTABLE));
  for (unsigned i = 0; i < kPinnedWords; ++i) pinned_expected_.push_back(i * 7 + 1);
  std::copy(pinned_expected_.begin(), pinned_expected_.end(), pinned_);
  use_pinned();
}

void ReliabilityClient::use_pinned() {
  check_words("pinned memory", pinned_, pinned_expected_);
  CUdeviceptr mapped = 0;
  CU(cuMemHostGetDevicePointer(&mapped, pinned_, 0));
  CU(device_.launch_add(mapped, kPinnedWords, 5));
  CU(cuCtxSynchronize());
  for (unsigned& word : pinned_expected_) word += 5;
  check_words("pinned memory", pinned_, pinned_expected_);
}

unsigned ReliabilityClient::count() {
  void* arguments[] = {&out_};
  CU(cuLaunchKernel(count_, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
  unsigned value = 0;
  CU(cuMemcpyDtoH(&value, out_, sizeof value));
  return value;
}

void ReliabilityClient::hold_variables() {
  CUmodule module = nullptr;
  std::size_t bytes = 0;
  CU(cuModuleLoadData(&module, kGlobalPtx));
  CU(cuModuleGetFunction(&count_, module, "count"));
  CU(cuModuleGetGlobal(&counter_, &bytes, module, "counter"));
  CU(cuMemAlloc(&out_, sizeof(unsigned)));
  for (int i = 0; i < 3; ++i) require(count() == ++counted_, "wrong: the variable does not count");
  // Idle for a while, as a program is that computes elsewhere or asks its user: twenty times what the executor needs to notice.
  CU(cuCtxSynchronize());
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
}

void ReliabilityClient::use_variables() {
  unsigned value = 0;
  CU(cuMemcpyDtoH(&value, counter_, sizeof value));
  require(value == counted_, "wrong: the variable is " + std::to_string(value) + " and not " + std::to_string(counted_));
  for (int i = 0; i < 3; ++i) require(count() == ++counted_, "wrong: the variable does not count on");
}

// A kernel has left the address of a device function in memory.
void ReliabilityClient::hold_functions() {
  kernels_ = load_kernels();
  CU(cuMemAlloc(&out_, 2 * sizeof(CUdeviceptr)));
  launch_one(kernels_, "take_address", out_);
  use_functions();
}

void ReliabilityClient::use_functions() {
  launch_one(kernels_, "call_stored", out_, out_ + sizeof(CUdeviceptr));
  int result = 0;
  CU(cuMemcpyDtoH(&result, out_ + sizeof(CUdeviceptr), sizeof result));
  require(result == 42, "wrong: the function gives " + std::to_string(result) + " and not 42");
}

// A kernel has allocated memory from the device's heap and left its address.
void ReliabilityClient::hold_heap() {
  CU(cuModuleLoadData(&kernels_, kHeapPtx));
  CU(cuMemAlloc(&out_, 2 * sizeof(CUdeviceptr)));
  launch_one(kernels_, "allocate", out_);
  use_heap();
}

void ReliabilityClient::use_heap() {
  launch_one(kernels_, "read_back", out_, out_ + sizeof(CUdeviceptr));
  int result = 0;
  CU(cuMemcpyDtoH(&result, out_ + sizeof(CUdeviceptr), sizeof result));
  require(result == 42, "wrong: the heap holds " + std::to_string(result) + " and not 42");
}

void ReliabilityClient::hold_timed() {
  hold_streams();
  for (int i = 0; i < 2; ++i) CU(cuEventCreate(&events_.emplace_back(), CU_EVENT_DEFAULT));
  CU(cuEventRecord(events_[kStreams], nullptr));
  for (Words& chunk : chunks_) {
    CU(device_.launch_add(chunk.address, chunk.count(), 1));
    chunk.add(1);
  }
  CU(cuEventRecord(events_[kStreams + 1], nullptr));
  CU(cuCtxSynchronize());
  CU(cuEventElapsedTime(&between_ms_, events_[kStreams], events_[kStreams + 1]));
}

void ReliabilityClient::use_timed() {
  CU(cuEventSynchronize(events_[kStreams]));
  float now_ms = -1;
  CU(cuEventElapsedTime(&now_ms, events_[kStreams], events_[kStreams + 1]));
  require(std::abs(now_ms - between_ms_) < 1e-3F,
          "wrong: the events are " + std::to_string(now_ms) + " ms apart and not " + std::to_string(between_ms_));
}

std::string ReliabilityClient::hold(const std::string& kind) {
  first_ = std::make_unique<Words>(1'000, 3);
  first_->check();
  if (kind == "idle") held_.emplace(device_, is_fast() ? HeldObjects::kLargestWords : 60'001);
  if (kind == "memory") hold_memory();
  if (kind == "pinned") hold_pinned();
  if (kind == "streams") hold_streams();
  if (kind == "variables") hold_variables();
  if (kind == "functions") hold_functions();
  if (kind == "heap") hold_heap();
  if (kind == "timed") hold_timed();
  CU(cuCtxSynchronize());
  return "ok";
}

std::string ReliabilityClient::go_on(const std::string& kind, int duration_ms) {
  if (kind == "busy") return stay_busy(duration_ms);
  if (kind == "waiting") return wait_for_own_kernel(duration_ms);
  CU(device_.launch_add(first_->address, first_->count(), 9));
  CU(cuCtxSynchronize());
  const std::int64_t at = stamp();
  first_->add(9);
  first_->check();
  if (kind == "idle") held_.value().check();
  if (kind == "idle") held_.value().use();
  if (kind == "memory") use_memory();
  if (kind == "pinned") use_pinned();
  if (kind == "streams") use_streams();
  if (kind == "variables") use_variables();
  if (kind == "functions") use_functions();
  if (kind == "heap") use_heap();
  if (kind == "timed") use_timed();
  return "ok " + std::to_string(at);
}

std::string ReliabilityClient::stay_busy(int duration_ms) {
  const std::int64_t end = stamp() + std::int64_t{duration_ms} * 1'000'000;
  std::int64_t longest = 0;
  for (std::int64_t last = stamp(); last < end;) {
    for (int i = 0; i < 20; ++i) {
      CU(device_.launch_add(first_->address, first_->count(), 1));
      first_->add(1);
    }
    CU(cuCtxSynchronize());
    const std::int64_t now = stamp();
    longest = std::max(longest, now - last);
    last = now;
    first_->check();
  }
  return "ok " + std::to_string(static_cast<double>(longest) / 1e6);
}

// Its kernel ends when another thread says so.
std::string ReliabilityClient::wait_for_own_kernel(int duration_ms) {
  unsigned* flag = nullptr;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&flag), sizeof *flag, CU_MEMHOSTALLOC_PORTABLE));
  __atomic_store_n(flag, 0u, __ATOMIC_RELEASE);
  CUdeviceptr mapped = 0;
  CU(cuMemHostGetDevicePointer(&mapped, flag, 0));
  CU(device_.launch_wait_flag(mapped));
  CU(device_.launch_add(first_->address, first_->count(), 2));
  std::thread raises([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(duration_ms));
    __atomic_store_n(flag, 1u, __ATOMIC_RELEASE);
  });
  const std::int64_t began = stamp();
  const CUresult result = cuStreamSynchronize(nullptr);
  const std::int64_t ended = stamp();
  raises.join();
  CU(result);
  first_->add(2);
  first_->check();
  return "ok " + std::to_string(static_cast<double>(ended - began) / 1e6 - duration_ms);
}

std::string ReliabilityClient::leave_at_work() {
  first_ = std::make_unique<Words>(20'000, 3);
  for (int i = 0; i < 100; ++i) CU(device_.launch_add(first_->address, first_->count(), 1));
  return "ok";
}

std::string ReliabilityClient::spin() {
  CUdeviceptr flag = 0;
  CU(cuMemAlloc(&flag, sizeof(unsigned)));
  CU(cuMemsetD32(flag, 0, 1));
  CU(cuCtxSynchronize());
  CU(device_.launch_wait_flag(flag));
  CU_GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  return "ok";
}

void ReliabilityClient::probe(CUresult wanted) {
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  const auto simple_calls = [&] {
    CU_GIVES(wanted, cuCtxSynchronize());
    CU_GIVES(wanted, cuMemAlloc(&memory, 4));
    CU_GIVES(wanted, cuStreamCreate(&stream, 0));
    if (wanted != CUDA_SUCCESS) CU_GIVES(wanted, device_.launch_store(0x10));
  };
  simple_calls();
  std::string elsewhere;
  std::thread([&] {
    try {
      CU(cuCtxSetCurrent(device_.context));
      simple_calls();
    } catch (const std::exception& failure) {
      elsewhere = failure.what();
    }
  }).join();
  if (!elsewhere.empty()) throw Failure("in another thread: " + elsewhere);
}

std::string ReliabilityClient::answer(const std::string& line) {
  std::istringstream words(line);
  std::string command, argument;
  int number = 0;
  words >> command >> argument >> number;
  if (command == "hold") return hold(argument);
  if (command == "go_on") return go_on(argument, number);
  if (command == "ready") return faults_.emplace(), "ok";
  if (command == "fault") {
    const std::int64_t at = stamp();
    return std::to_string(at) + " " + describe(faults_.value().fault(argument));
  }
  if (command == "work") return leave_at_work();
  if (command == "spin") return spin();
  if (command == "idle") return "ok";
  if (command == "probe") return probe(static_cast<CUresult>(std::stoi(argument))), "ok";
  throw Failure("unknown command " + line);
}

}  // namespace
}  // namespace mpsshim::test

int main() { return mpsshim::test::converse<mpsshim::test::ReliabilityClient>(); }
