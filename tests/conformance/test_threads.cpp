// SPDX-License-Identifier: Apache-2.0
// Calls of two threads at once: every pair of operations (thread_operations.hpp), each with itself too, for some milliseconds. Every status is the
// one that CUDA gives, nothing hangs, and what was asked for was done once.
//
// MPSSHIM_TEST_MS: how long a pair runs, 15 unless told. MPSSHIM_TEST_SEED: of the random choices. MPSSHIM_TEST_PAIRS: those whose name
// ("first | second") contains it.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "thread_operations.hpp"

using namespace mpsshim::test;
using Clock = std::chrono::steady_clock;

namespace {

constexpr unsigned kStepsBetweenWaits = 200;       // for what has been asked for, or its end would take long
constexpr auto kHangs = std::chrono::seconds(20);  // a pair that runs for milliseconds

unsigned number_of(const char* variable, unsigned otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr && *text != '\0' ? static_cast<unsigned>(std::strtoul(text, nullptr, 0)) : otherwise;
}

// Runs the pairs. A hang ends the program, since threads cannot be ended.
class Pairs {
 public:
  explicit Pairs(unsigned seed) : first_(shared_, findings_, seed), second_(shared_, findings_, seed + 1) {
    watch_ = std::thread([this] { watch(); });
  }
  ~Pairs() {
    is_over_ = true;
    watch_.join();
  }
  Pairs(const Pairs&) = delete;
  Pairs& operator=(const Pairs&) = delete;

  // What was not as it should be.
  std::string run(const Operation& one, const Operation& other, std::chrono::milliseconds time) {
    first_.captures_meet_waits = second_.captures_meet_waits = (one.captures && other.waits_for_all) || (one.waits_for_all && other.captures);
    end_ = Clock::now() + time;
    begun_ms_ = now_ms();
    std::atomic<unsigned> ready{0};
    const auto repeat = [&](Worker& worker, const Operation& operation) {
      worker.operation = operation.name;
      worker.call = "cuCtxSetCurrent";
      worker.expect(CU(cuCtxSetCurrent)(shared_.current()));
      for (++ready; ready != 2;) std::this_thread::yield();
      for (unsigned step = 1; step == 1 || Clock::now() < end_; ++step) {
        operation.step(worker);
        if (step % kStepsBetweenWaits == 0) worker.wait();
      }
    };
    std::thread beside([&] { repeat(second_, other); });
    repeat(first_, one);
    beside.join();
    first_.operation = "the end";
    shared_.settle(findings_);
    begun_ms_ = kIdle;
    return findings_.take();
  }

 private:
  static constexpr long long kIdle = -1;

  static long long now_ms() { return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch()).count(); }

  void watch() {
    while (!is_over_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const long long begun = begun_ms_;
      if (begun == kIdle || now_ms() - begun < std::chrono::milliseconds(kHangs).count()) continue;
      std::fprintf(stderr, "\"%s | %s\" hangs: in %s and %s\n", first_.operation.load(), second_.operation.load(), first_.call.load(),
                   second_.call.load());
      std::fputs(findings_.take().c_str(), stderr);
      std::_Exit(1);
    }
  }

  Findings findings_;
  SharedObjects shared_;
  Worker first_;
  Worker second_;
  Clock::time_point end_;
  std::atomic<long long> begun_ms_{kIdle};
  std::atomic<bool> is_over_{false};
  std::thread watch_;
};

}  // namespace

TEST_CASE("two threads make any two calls at once", "[forwarded]") {
  const unsigned seed = number_of("MPSSHIM_TEST_SEED", std::random_device{}());
  const std::chrono::milliseconds time(number_of("MPSSHIM_TEST_MS", 15));
  const char* wanted = std::getenv("MPSSHIM_TEST_PAIRS");
  INFO("MPSSHIM_TEST_SEED=" << seed);
  Pairs pairs(seed);
  const auto operations = thread_operations();
  unsigned count = 0;
  for (size_t i = 0; i < operations.size(); ++i) {
    for (size_t j = i; j < operations.size(); ++j) {
      if (is_cpu_driver() && !(operations[i].on_cpu_driver && operations[j].on_cpu_driver)) continue;
      const std::string name = std::string(operations[i].name) + " | " + operations[j].name;
      if (wanted != nullptr && name.find(wanted) == std::string::npos) continue;
      if (driver_kind() == DriverKind::real) {
        // NVIDIA's driver dies of SIGSEGV (H200, driver 580: five of five runs).
        if (operations[i].waits_for_all && operations[j].captures) continue;
        if (name.find("use pools") != std::string::npos) continue;  // and in some pair of these (H100: five runs)
        std::printf("%s\n", name.c_str());
        std::fflush(stdout);
      }
      const std::string found = pairs.run(operations[i], operations[j], time);
      INFO(name << "\n" << found);
      CHECK(found.empty());
      ++count;
    }
  }
  CHECK(count != 0);
}

TEST_CASE("an event is recorded again while another thread waits for it, and nothing is in the NULL stream", "[forwarded]") {
  const DeviceContext context;
  const CUstream stream = new_stream();
  const CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
  std::atomic<bool> is_over{false};
  std::atomic<unsigned> failed{0};
  std::thread recording([&] {
    failed += CU(cuCtxSetCurrent)(context.handle()) == CUDA_SUCCESS ? 0 : 1;
    while (!is_over) {
      failed += CU(cuEventRecord)(event, stream) == CUDA_SUCCESS ? 0 : 1;
      while (CU(cuEventQuery)(event) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
    }
  });
  for (const auto end = Clock::now() + std::chrono::seconds(1); Clock::now() < end;) failed += CU(cuEventSynchronize)(event) == CUDA_SUCCESS ? 0 : 1;
  is_over = true;
  recording.join();
  CHECK(failed == 0);
  OK(CU(cuEventDestroy)(event));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("two threads retain and release a primary context that nobody else holds", "[forwarded]") {
  OK(CU(cuInit)(0));
  const std::string image = read_image("kernels.fatbin");
  std::array<std::string, 2> wrong;
  const auto use = [&](std::string& first_wrong) {
    const auto fine = [&](CUresult status, const char* call) {
      if (status != CUDA_SUCCESS && first_wrong.empty()) first_wrong = std::string(call) + " returned " + std::to_string(status);
      return status == CUDA_SUCCESS;
    };
    for (const auto end = Clock::now() + std::chrono::milliseconds(700); Clock::now() < end && first_wrong.empty();) {
      CUcontext context = nullptr;
      CUstream stream = nullptr;
      CUdeviceptr word = 0;
      unsigned value = 0;
      CUlibrary library = nullptr;
      const bool is_fine =
          fine(CU(cuDevicePrimaryCtxRetain)(&context, 0), "cuDevicePrimaryCtxRetain") && fine(CU(cuCtxSetCurrent)(context), "cuCtxSetCurrent") &&
          fine(CU(cuLibraryLoadData)(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData") &&
          fine(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate") && fine(CU(cuMemAlloc)(&word, sizeof value), "cuMemAlloc") &&
          fine(CU(cuMemsetD32Async)(word, 77, 1, stream), "cuMemsetD32Async") &&
          fine(CU(cuMemcpyDtoHAsync)(&value, word, sizeof value, stream), "cuMemcpyDtoHAsync") &&
          fine(CU(cuStreamSynchronize)(stream), "cuStreamSynchronize") && fine(CU(cuMemFree)(word), "cuMemFree") &&
          fine(CU(cuStreamDestroy)(stream), "cuStreamDestroy") && fine(CU(cuCtxSetCurrent)(nullptr), "cuCtxSetCurrent") &&
          fine(CU(cuDevicePrimaryCtxRelease)(0), "cuDevicePrimaryCtxRelease") &&
          fine(CU(cuLibraryUnload)(library), "cuLibraryUnload");  // it is the process's
      if (is_fine && value != 77) first_wrong = "other words than were written";
    }
  };
  std::thread beside([&] { use(wrong[1]); });
  use(wrong[0]);
  beside.join();
  CHECK(wrong[0].empty());
  CHECK(wrong[1].empty());
  if (!(wrong[0] + wrong[1]).empty()) WARN(wrong[0] << " | " << wrong[1]);
}
