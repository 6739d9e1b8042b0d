// SPDX-License-Identifier: Apache-2.0
// Events of a stream that goes on behind them, and how a program comes to know that their work has ended.
#include <chrono>
#include <thread>

#include "shared_word.hpp"

using namespace mpsshim::test;
using namespace std::chrono_literals;

namespace {

// A stream that has recorded events for long of which nobody looks for any, and now does so in front of a kernel that runs until it is let go.
struct BusyStream {
  explicit BusyStream(unsigned flags) : ended(new_event(flags)), later(new_event(flags)) {
    launch_once(kernels.store);
    for (unsigned i = 0; i < 80; ++i) {
      OK(launch(kernels.store, stream, 1, 1, word.address() + 8, i));
      OK(CU(cuEventRecord)(ended, stream));
    }
    OK(launch(kernels.store, stream, 1, 1, word.address() + 8, 80u));
    OK(CU(cuStreamSynchronize)(stream));
    OK(launch(kernels.spin, stream, 1, 1, first.address()));
    first.wait_for_spinning();
    std::this_thread::sleep_for(5ms);  // more than a worker needs to have the GPU write how far it is
    OK(CU(cuEventRecord)(ended, stream));
    OK(CU(cuStreamWaitEvent)(waiting, ended, 0));
    OK(launch(kernels.store, waiting, 1, 1, word.address(), 1u));
    OK(launch(kernels.spin, stream, 1, 1, second.address()));
    OK(CU(cuEventRecord)(later, stream));
    std::this_thread::sleep_for(5ms);  // the broker has it all
    CHECK(*word == 0);
  }
  ~BusyStream() {
    *first = 1;
    *second = 1;
    CU(cuCtxSynchronize)();
    for (const CUevent event : {ended, later}) CU(cuEventDestroy)(event);
    for (const CUstream each : {stream, waiting}) CU(cuStreamDestroy)(each);
  }
  BusyStream(const BusyStream&) = delete;

  GateKernels kernels;
  SharedWord word, first, second;
  CUstream stream = new_stream();
  CUstream waiting = new_stream();
  CUevent ended, later;
};

template <typename Condition>
bool comes(Condition is_there) {
  for (int looks = 0; looks < 10'000; ++looks) {
    if (is_there()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

}  // namespace

TEST_CASE("an event has ended when its work has, though its stream goes on, however the program looks for it", "[forwarded]") {
  const DeviceContext context;
  const unsigned flags = GENERATE(0u, static_cast<unsigned>(CU_EVENT_DISABLE_TIMING), static_cast<unsigned>(CU_EVENT_BLOCKING_SYNC));
  BusyStream busy(flags);
  CHECK(CU(cuStreamQuery)(busy.waiting) == CUDA_ERROR_NOT_READY);
  SECTION("it waits") {
    *busy.first = 1;
    OK(CU(cuEventSynchronize)(busy.ended));
  }
  SECTION("it has begun to wait before") {
    std::thread opens([&] {
      std::this_thread::sleep_for(20ms);
      *busy.first = 1;
    });
    OK(CU(cuEventSynchronize)(busy.ended));
    opens.join();
  }
  SECTION("it asks again and again") {
    *busy.first = 1;
    CHECK(comes([&] { return CU(cuEventQuery)(busy.ended) == CUDA_SUCCESS; }));
  }
  SECTION("it waits for work that has waited, and asks once") {
    *busy.first = 1;
    OK(CU(cuStreamSynchronize)(busy.waiting));
    OK(CU(cuEventQuery)(busy.ended));
  }
  SECTION("it waits for work that has waited, and asks for a time") {
    *busy.first = 1;
    OK(CU(cuStreamSynchronize)(busy.waiting));
    float milliseconds = -1;
    const CUresult result = CU(cuEventElapsedTime)(&milliseconds, busy.ended, busy.ended);
    CHECK(result == ((flags & CU_EVENT_DISABLE_TIMING) != 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS));
    CHECK(milliseconds == ((flags & CU_EVENT_DISABLE_TIMING) != 0 ? -1 : 0));
  }
  SECTION("it sees what work has written that has waited, and asks once") {
    *busy.first = 1;
    CHECK(comes([&] { return *busy.word == 1; }));
    OK(CU(cuEventQuery)(busy.ended));
  }
  CHECK(*busy.first == 1);
  CHECK(CU(cuEventQuery)(busy.later) == CUDA_ERROR_NOT_READY);
  CHECK(CU(cuStreamQuery)(busy.stream) == CUDA_ERROR_NOT_READY);
  *busy.second = 1;
  OK(CU(cuEventSynchronize)(busy.later));
  OK(CU(cuStreamQuery)(busy.stream));
}
