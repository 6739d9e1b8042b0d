// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "driver_under_test.hpp"

using namespace mpsshim::test;
using namespace std::chrono_literals;

namespace {

// One word of pinned memory that host and device both see.
class SharedWord {
 public:
  SharedWord() {
    void* pointer = nullptr;
    OK(CU(cuMemHostAlloc)(&pointer, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    word_ = static_cast<std::atomic<unsigned>*>(pointer);
  }
  ~SharedWord() { CU(cuMemFreeHost)(word_); }
  CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(word_); }
  std::atomic<unsigned>& operator*() { return *word_; }

 private:
  std::atomic<unsigned>* word_ = nullptr;
};

CUstream new_stream(unsigned flags) {
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, flags));
  return stream;
}

CUevent new_event(unsigned flags = CU_EVENT_DEFAULT) {
  CUevent event = nullptr;
  OK(CU(cuEventCreate)(&event, flags));
  return event;
}

}  // namespace

TEST_CASE("a stream waits for a value and then writes another") {
  const DeviceContext context;
  SharedWord gate;
  SharedWord result;
  const CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  OK(CU(cuStreamWaitValue32)(stream, gate.address(), 5, CU_STREAM_WAIT_VALUE_GEQ));
  OK(CU(cuStreamWriteValue32)(stream, result.address(), 9, 0));
  CHECK(CU(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY);
  std::this_thread::sleep_for(20ms);
  CHECK(*result == 0);
  *gate = 4;
  std::this_thread::sleep_for(20ms);
  CHECK(*result == 0);
  *gate = 5;
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(*result == 9);
  OK(CU(cuStreamQuery)(stream));
  CHECK(CU(cuStreamWriteValue32)(stream, result.address() + 2, 9, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuStreamWriteValue32)(stream, 0x1000, 9, 0) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("memory operations in a batch run in order") {
  const DeviceContext context;
  SharedWord words;
  const CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUstreamBatchMemOpParams batch[3]{};
  batch[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  batch[0].writeValue.address = words.address() + 8;
  batch[0].writeValue.value64 = 0x100000002ull;
  batch[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  batch[1].waitValue.address = words.address();
  batch[1].waitValue.value = 1;
  batch[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  batch[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  batch[2].writeValue.address = words.address() + 16;
  batch[2].writeValue.value = 3;
  OK(CU(cuStreamBatchMemOp)(stream, 3, batch, 0));
  auto* const view = reinterpret_cast<std::atomic<unsigned>*>(words.address());
  while (view[2] != 2) std::this_thread::yield();
  CHECK(view[3] == 1);
  CHECK(view[4] == 0);
  *words = 1;
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(view[4] == 3);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("an event stands for the place where it was recorded") {
  const DeviceContext context;
  SharedWord gate;
  SharedWord result;
  const CUstream first = new_stream(CU_STREAM_NON_BLOCKING);
  const CUstream second = new_stream(CU_STREAM_NON_BLOCKING);
  const CUevent event = new_event();
  CHECK(CU(cuEventQuery)(event) == CUDA_SUCCESS);  // never recorded

  OK(CU(cuStreamWaitValue32)(first, gate.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(CU(cuEventRecord)(event, first));
  OK(CU(cuStreamWaitEvent)(second, event, 0));
  OK(CU(cuStreamWriteValue32)(second, result.address(), 1, 0));
  CHECK(CU(cuEventQuery)(event) == CUDA_ERROR_NOT_READY);
  std::this_thread::sleep_for(10ms);
  CHECK(*result == 0);
  // Recorded anew further on: the wait made before keeps the old place.
  OK(CU(cuStreamWaitValue32)(first, gate.address(), 2, CU_STREAM_WAIT_VALUE_GEQ));
  OK(CU(cuEventRecord)(event, first));
  *gate = 1;
  OK(CU(cuStreamSynchronize)(second));
  CHECK(*result == 1);
  CHECK(CU(cuEventQuery)(event) == CUDA_ERROR_NOT_READY);
  *gate = 2;
  OK(CU(cuEventSynchronize)(event));
  OK(CU(cuEventDestroy)(event));
  CHECK(CU(cuEventQuery)(event) == CUDA_ERROR_INVALID_HANDLE);
  OK(CU(cuStreamDestroy)(first));
  OK(CU(cuStreamDestroy)(second));
}

TEST_CASE("events measure time") {
  const DeviceContext context;
  const CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  const CUevent start = new_event();
  const CUevent end = new_event();
  const CUevent untimed = new_event(CU_EVENT_DISABLE_TIMING);
  OK(CU(cuEventRecord)(start, stream));
  OK(CU(cuLaunchHostFunc)(stream, [](void*) { std::this_thread::sleep_for(30ms); }, nullptr));
  OK(CU(cuEventRecord)(end, stream));
  OK(CU(cuEventRecord)(untimed, stream));
  OK(CU(cuStreamSynchronize)(stream));
  float ms = 0;
  OK(CU(cuEventElapsedTime)(&ms, start, end));
  CHECK(ms >= 29.0f);
  CHECK(ms < 10000.0f);
  CHECK(CU(cuEventElapsedTime)(&ms, start, untimed) == CUDA_ERROR_INVALID_HANDLE);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("the legacy default stream and blocking streams wait for each other, others do not") {
  const DeviceContext context;
  SharedWord gate;
  SharedWord from_null;
  SharedWord from_blocking;
  SharedWord from_other;
  const CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  const CUstream after = new_stream(CU_STREAM_DEFAULT);
  const CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
  OK(CU(cuStreamWaitValue32)(blocking, gate.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(CU(cuStreamWriteValue32)(nullptr, from_null.address(), 1, 0));      // behind `blocking`
  OK(CU(cuStreamWriteValue32)(after, from_blocking.address(), 1, 0));    // behind the NULL stream
  OK(CU(cuStreamWriteValue32)(other, from_other.address(), 1, 0));       // behind nobody
  OK(CU(cuStreamSynchronize)(other));
  CHECK(*from_other == 1);
  std::this_thread::sleep_for(20ms);
  CHECK(*from_null == 0);
  CHECK(*from_blocking == 0);
  CHECK(CU(cuStreamQuery)(after) == CUDA_ERROR_NOT_READY);
  *gate = 1;
  OK(CU(cuCtxSynchronize)());
  CHECK(*from_null == 1);
  CHECK(*from_blocking == 1);
  for (const CUstream stream : {blocking, after, other}) OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a destroyed stream still does what it had") {
  const DeviceContext context;
  SharedWord gate;
  SharedWord result;
  const CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  OK(CU(cuStreamWaitValue32)(stream, gate.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(CU(cuStreamWriteValue32)(stream, result.address(), 1, 0));
  OK(CU(cuStreamDestroy)(stream));
  CHECK(CU(cuStreamQuery)(stream) == CUDA_ERROR_INVALID_HANDLE);
  *gate = 1;
  OK(CU(cuCtxSynchronize)());
  CHECK(*result == 1);
}

TEST_CASE("host functions run in order with the stream, and may be many streams at once") {
  const DeviceContext context;
  constexpr int kStreams = 64;
  std::atomic<int> inside{0};
  std::vector<CUstream> streams;
  // Each waits until all are inside: a pool smaller than the number of busy streams would hang here.
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(new_stream(CU_STREAM_NON_BLOCKING));
    OK(CU(cuLaunchHostFunc)(
        streams.back(),
        [](void* data) {
          auto& count = *static_cast<std::atomic<int>*>(data);
          ++count;
          while (count < kStreams) std::this_thread::sleep_for(1ms);
        },
        &inside));
  }
  // The hardware runs host functions of all streams on one thread; this is a promise of the CPU driver only.
  OK(CU(cuCtxSynchronize)());
  CHECK(inside == kStreams);
  for (const CUstream stream : streams) OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("pageable memory given to an asynchronous copy may be reused at once") {
  const DeviceContext context;
  SharedWord gate;
  const CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr device = 0;
  OK(CU(cuMemAlloc)(&device, 4096));
  unsigned value = 1;
  OK(CU(cuStreamWaitValue32)(stream, gate.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(CU(cuMemcpyHtoDAsync)(device, &value, sizeof value, stream));
  value = 2;
  *gate = 1;
  unsigned seen = 0;
  OK(CU(cuMemcpyDtoHAsync)(&seen, device, sizeof seen, stream));  // pageable destination: done when it returns
  CHECK(seen == 1);
  OK(CU(cuMemFree)(device));
  OK(CU(cuStreamDestroy)(stream));
}
