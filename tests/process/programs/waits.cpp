// SPDX-License-Identifier: Apache-2.0
// waits HOW MILLISECONDS: waits for a kernel that runs so long, and says what the waiting cost the waiting thread:
// "waited 203000 us, computing 150 us, displaced 0 times": how often another thread got its core while it wanted it. HOW is how the program asks CUDA
// to wait:
//   auto, spin, yield, block   flags of the primary context, cuCtxSynchronize
//   created                    a context made with CU_CTX_SCHED_BLOCKING_SYNC, cuStreamSynchronize
//   event                      an event with CU_EVENT_BLOCKING_SYNC in a context without flags
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string>
#include <thread>

#include "tests/process/programs/driver.hpp"

using namespace mpsshim::test;

namespace {

const std::map<std::string, unsigned> kFlags = {{"auto", CU_CTX_SCHED_AUTO},           {"spin", CU_CTX_SCHED_SPIN},    {"yield", CU_CTX_SCHED_YIELD},
                                                {"block", CU_CTX_SCHED_BLOCKING_SYNC}, {"created", CU_CTX_SCHED_AUTO}, {"event", CU_CTX_SCHED_AUTO}};

long long microseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000ll + now.tv_nsec / 1000;
}

long long displacements() {
  rusage used{};
  getrusage(RUSAGE_THREAD, &used);
  return used.ru_nivcsw;
}

CUstream non_blocking_stream() {
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

// A kernel that another thread ends after so long.
class LongKernel {
 public:
  LongKernel(CUstream stream, std::chrono::milliseconds duration) {
    CU(cuModuleLoadData(&module_, kPlainPtx));
    CUfunction wait_flag = nullptr;
    CU(cuModuleGetFunction(&wait_flag, module_, "wait_flag"));
    CU(cuMemAlloc(&flag_, sizeof(unsigned)));
    CU(cuMemsetD32(flag_, 0, 1));
    const CUstream other = non_blocking_stream();
    CU(cuCtxSynchronize());
    void* arguments[] = {&flag_};
    CU(cuLaunchKernel(wait_flag, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
    CUcontext context = nullptr;
    CU(cuCtxGetCurrent(&context));
    ender_ = std::thread([=, flag = flag_] {
      std::this_thread::sleep_for(duration);
      if (cuCtxSetCurrent(context) != CUDA_SUCCESS || cuMemsetD32Async(flag, 1, 1, other) != CUDA_SUCCESS) std::abort();
    });
  }
  ~LongKernel() { ender_.join(); }

 private:
  CUmodule module_ = nullptr;
  CUdeviceptr flag_ = 0;
  std::thread ender_;
};

void wait(const std::string& how, CUstream stream) {
  if (how == "event") {
    CUevent event = nullptr;
    CU(cuEventCreate(&event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(event, stream));
    CU(cuEventSynchronize(event));
  } else if (how == "created") {
    CU(cuStreamSynchronize(stream));
  } else {
    CU(cuCtxSynchronize());
  }
}

void run(const std::string& how, std::chrono::milliseconds duration) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxSetFlags(device, kFlags.at(how)));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
#if CUDA_VERSION >= 13000
  if (how == "created") CU(cuCtxCreate(&context, nullptr, CU_CTX_SCHED_BLOCKING_SYNC, device));
#else
  if (how == "created") CU(cuCtxCreate(&context, CU_CTX_SCHED_BLOCKING_SYNC, device));
#endif
  const CUstream stream = non_blocking_stream();
  const LongKernel kernel(stream, duration);
  const long long began = microseconds(CLOCK_MONOTONIC), computed = microseconds(CLOCK_THREAD_CPUTIME_ID), displaced = displacements();
  wait(how, stream);
  std::printf("waited %lld us, computing %lld us, displaced %lld times\n", microseconds(CLOCK_MONOTONIC) - began,
              microseconds(CLOCK_THREAD_CPUTIME_ID) - computed, displacements() - displaced);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || kFlags.count(argv[1]) == 0) {
    std::fprintf(stderr, "usage: waits auto|spin|yield|block|created|event MILLISECONDS\n");
    return 2;
  }
  try {
    run(argv[1], std::chrono::milliseconds(std::atoi(argv[2])));
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "waits: %s\n", failure.what());
    return 1;
  }
}
