// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;
using namespace std::chrono_literals;

TEST_CASE("a stream waits for a value and then writes another") {
  const DeviceContext context;
  SharedWord gate;
  SharedWord result;
  const CUstream stream = new_stream();
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
  const CUstream stream = new_stream();
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

TEST_CASE("an event stands for the place where it was recorded", "[forwarded]") {
  const DeviceContext context;
  const GateKernels kernels;
  SharedWord gate;
  SharedWord second_gate;
  SharedWord result;
  const CUstream first = new_stream();
  const CUstream second = new_stream();
  const CUevent event = new_event();
  CHECK(CU(cuEventQuery)(event) == CUDA_SUCCESS);  // never recorded
  OK(CU(cuEventSynchronize)(event));

  OK(launch(kernels.spin, first, 1, 1, gate.address()));
  OK(CU(cuEventRecord)(event, first));
  OK(CU(cuStreamWaitEvent)(second, event, 0));
  OK(launch(kernels.store, second, 1, 1, result.address(), 1u));
  CHECK(CU(cuEventQuery)(event) == CUDA_ERROR_NOT_READY);
  std::this_thread::sleep_for(10ms);
  CHECK(*result == 0);
  // Recorded anew further on: the wait made before keeps the old place.
  OK(launch(kernels.spin, first, 1, 1, second_gate.address()));
  OK(CU(cuEventRecord)(event, first));
  *gate = 1;
  OK(CU(cuStreamSynchronize)(second));
  CHECK(*result == 1);
  CHECK(CU(cuEventQuery)(event) == CUDA_ERROR_NOT_READY);
  *second_gate = 1;
  OK(CU(cuEventSynchronize)(event));
  OK(CU(cuEventDestroy)(event));
  if (refuses_dead_handles()) CHECK(CU(cuEventQuery)(event) == CUDA_ERROR_INVALID_HANDLE);
  OK(CU(cuStreamDestroy)(first));
  OK(CU(cuStreamDestroy)(second));
}

TEST_CASE("events measure time", "[forwarded]") {
  const DeviceContext context;
  const GateKernels kernels;
  SharedWord gate;
  const CUstream stream = new_stream();
  const CUevent start = new_event();
  const CUevent end = new_event();
  const CUevent untimed = new_event(CU_EVENT_DISABLE_TIMING);
  float ms = 0;
  CHECK(CU(cuEventElapsedTime)(&ms, start, end) == CUDA_ERROR_INVALID_HANDLE);  // never recorded
  OK(CU(cuEventRecord)(start, stream));
  OK(launch(kernels.spin, stream, 1, 1, gate.address()));
  OK(CU(cuEventRecord)(end, stream));
  OK(CU(cuEventRecord)(untimed, stream));
  CHECK(CU(cuEventElapsedTime)(&ms, start, end) == CUDA_ERROR_NOT_READY);
  gate.wait_for_spinning();
  std::this_thread::sleep_for(30ms);
  *gate = 1;
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuEventElapsedTime)(&ms, start, end));
  CHECK(ms >= 29.0f);
  CHECK(ms < 10000.0f);
  CHECK(CU(cuEventElapsedTime)(&ms, start, untimed) == CUDA_ERROR_INVALID_HANDLE);
  for (const CUevent event : {start, end, untimed}) OK(CU(cuEventDestroy)(event));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("the legacy default stream and blocking streams wait for each other, others do not", "[forwarded]") {
  const DeviceContext context;
  const GateKernels kernels;
  SharedWord gate;
  SharedWord from_null;
  SharedWord from_blocking;
  SharedWord from_other;
  const CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  const CUstream after = new_stream(CU_STREAM_DEFAULT);
  const CUstream other = new_stream();
  OK(launch(kernels.spin, blocking, 1, 1, gate.address()));
  OK(launch(kernels.store, nullptr, 1, 1, from_null.address(), 1u));    // behind `blocking`
  OK(launch(kernels.store, after, 1, 1, from_blocking.address(), 1u));  // behind the NULL stream
  OK(launch(kernels.store, other, 1, 1, from_other.address(), 1u));     // behind nobody
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

TEST_CASE("a destroyed stream still does what it had", "[forwarded]") {
  const DeviceContext context;
  const GateKernels kernels;
  SharedWord gate;
  SharedWord result;
  const CUstream stream = new_stream();
  OK(launch(kernels.spin, stream, 1, 1, gate.address()));
  OK(launch(kernels.store, stream, 1, 1, result.address(), 1u));
  OK(CU(cuStreamDestroy)(stream));
  if (refuses_dead_handles()) CHECK(CU(cuStreamQuery)(stream) == CUDA_ERROR_INVALID_HANDLE);
  *gate = 1;
  OK(CU(cuCtxSynchronize)());
  CHECK(*result == 1);
}

TEST_CASE("host functions of many streams run at once") {
  if (driver_kind() == DriverKind::real) MPSSHIM_SKIP("a GPU's driver runs the host functions of all streams on one thread");
  const DeviceContext context;
  constexpr int kStreams = 64;
  std::atomic<int> inside{0};
  std::vector<CUstream> streams;
  // Each waits until all are inside: a pool smaller than the number of busy streams would hang here.
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(new_stream());
    OK(CU(cuLaunchHostFunc)(
        streams.back(),
        [](void* data) {
          auto& count = *static_cast<std::atomic<int>*>(data);
          ++count;
          while (count < kStreams) std::this_thread::sleep_for(1ms);
        },
        &inside));
  }
  OK(CU(cuCtxSynchronize)());
  CHECK(inside == kStreams);
  for (const CUstream stream : streams) OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a host function runs after what stands before it in its stream, and before what follows", "[forwarded]") {
  const DeviceContext context;
  SharedWord word;
  const CUstream stream = new_stream();
  OK(CU(cuStreamWriteValue32)(stream, word.address(), 1, 0));
  OK(CU(cuLaunchHostFunc)(
      stream,
      [](void* data) {
        auto& count = *static_cast<std::atomic<unsigned>*>(data);
        std::this_thread::sleep_for(10ms);
        count = count == 1 ? 2 : 99;
      },
      &*word));
  OK(CU(cuStreamWaitValue32)(stream, word.address(), 2, CU_STREAM_WAIT_VALUE_EQ));
  OK(CU(cuStreamWriteValue32)(stream, word.address(), 3, 0));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(*word == 3);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("pageable memory given to an asynchronous copy may be reused at once", "[forwarded]") {
  const DeviceContext context;
  const GateKernels kernels;
  SharedWord gate;
  const CUstream stream = new_stream();
  CUdeviceptr device = 0;
  OK(CU(cuMemAlloc)(&device, 4096));
  unsigned value = 1;
  OK(launch(kernels.spin, stream, 1, 1, gate.address()));
  OK(CU(cuMemcpyHtoDAsync)(device, &value, sizeof value, stream));
  value = 2;
  *gate = 1;
  unsigned seen = 0;
  OK(CU(cuMemcpyDtoHAsync)(&seen, device, sizeof seen, stream));  // pageable destination: done when it returns
  CHECK(seen == 1);
  OK(CU(cuMemFree)(device));
  OK(CU(cuStreamDestroy)(stream));
}
