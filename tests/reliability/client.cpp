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
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "tests/process/programs/conversation.hpp"
#include "tests/reliability/fault_kernels.hpp"
#include "tests/reliability/held_kinds.hpp"

namespace mpsshim::test {
namespace {

std::int64_t stamp() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

class ReliabilityClient {
 public:
  std::string answer(const std::string& line);

 private:
  std::string make(const std::string& kind);
  std::string go_on(const std::string& kind, int duration_ms);
  std::string stay_busy(int duration_ms);
  std::string wait_for_own_kernel(int duration_ms);
  std::string leave_at_work();
  std::string spin();
  void probe(CUresult wanted);

  Device device_;
  std::optional<FaultKernels> faults_;
  std::unique_ptr<Words> first_;  // what the launch works on that ends the clock
  std::unique_ptr<Held> held_;
};

std::string ReliabilityClient::make(const std::string& kind) {
  first_ = std::make_unique<Words>(1'000, 3);
  first_->check();
  held_ = hold(kind, device_);
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
  held_->use();
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
  if (command == "hold") return make(argument);
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
