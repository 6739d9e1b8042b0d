// SPDX-License-Identifier: Apache-2.0
// Calls that concern a context as a whole, and questions about its device that are no attributes.
#include <chrono>
#include <thread>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;
using namespace std::chrono_literals;

TEST_CASE("the widest linear texture of a format", "[forwarded]") {
  OK(CU(cuInit)(0));
  size_t width = 0;
  OK(CU(cuDeviceGetTexture1DLinearMaxWidth)(&width, CU_AD_FORMAT_FLOAT, 1, 0));
  CHECK(width >= 65536);
  size_t narrow = 0;
  OK(CU(cuDeviceGetTexture1DLinearMaxWidth)(&narrow, CU_AD_FORMAT_FLOAT, 4, 0));
  CHECK(narrow >= 65536);
  CHECK(narrow <= width);
  CHECK(CU(cuDeviceGetTexture1DLinearMaxWidth)(nullptr, CU_AD_FORMAT_FLOAT, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceGetTexture1DLinearMaxWidth)(&width, CU_AD_FORMAT_FLOAT, 1, 4711) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(CU(cuDeviceGetTexture1DLinearMaxWidth)(&width, CU_AD_FORMAT_FLOAT, 7, 0) == CUDA_ERROR_INVALID_VALUE);
}

#if CUDA_VERSION >= 13000
TEST_CASE("atomic operations between device and host", "[forwarded]") {
  OK(CU(cuInit)(0));
  const CUatomicOperation operations[] = {CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_CAS, CU_ATOMIC_OPERATION_FLOAT_ADD};
  unsigned capabilities[3] = {~0u, ~0u, ~0u};
  OK(CU(cuDeviceGetHostAtomicCapabilities)(capabilities, operations, 3, 0));
  for (const unsigned each : capabilities) CHECK((each & ~0x7fu) == 0);  // CUatomicOperationCapability has seven bits
  CHECK(CU(cuDeviceGetHostAtomicCapabilities)(nullptr, operations, 3, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceGetHostAtomicCapabilities)(capabilities, nullptr, 3, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceGetHostAtomicCapabilities)(capabilities, operations, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceGetHostAtomicCapabilities)(capabilities, operations, 3, 4711) == CUDA_ERROR_INVALID_DEVICE);
  volatile int hidden = 4711;
  const auto unknown = static_cast<CUatomicOperation>(hidden);
  CHECK(CU(cuDeviceGetHostAtomicCapabilities)(capabilities, &unknown, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  if (!is_cpu_driver()) CHECK(CU(cuDeviceGetP2PAtomicCapabilities)(capabilities, operations, 3, 0, 0) == CUDA_ERROR_INVALID_DEVICE);
}
#endif

TEST_CASE("the cache's persisting lines are reset and remote writes are flushed", "[forwarded]") {
  const DeviceContext context;
  OK(CU(cuCtxResetPersistingL2Cache)());
  const CUresult flushed =
      CU(cuFlushGPUDirectRDMAWrites)(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
  CHECK((flushed == CUDA_SUCCESS || flushed == CUDA_ERROR_NOT_SUPPORTED));
  if (flushed == CUDA_SUCCESS) {
    volatile int hidden = 4711;
    CHECK(CU(cuFlushGPUDirectRDMAWrites)(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, static_cast<CUflushGPUDirectRDMAWritesScope>(hidden)) ==
          CUDA_ERROR_INVALID_VALUE);
  }
  OK(CU(cuCtxSynchronize)());
}

#if CUDA_VERSION >= 12050
TEST_CASE("an event of a whole context comes behind the work of all its streams", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no events of contexts: libmpsshim.so makes them of its streams");
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction spin = image.function("spin");
  SharedWord first;
  SharedWord second;
  const CUevent event = new_event();
  OK(CU(cuCtxRecordEvent)(context.handle(), event));
  OK(CU(cuEventSynchronize)(event));  // nothing was there
  CUstream streams[2] = {new_stream(), new_stream()};
  OK(launch(spin, streams[0], 1, 1, first.address()));
  OK(launch(spin, streams[1], 1, 1, second.address()));
  OK(CU(cuStreamDestroy)(streams[1]));  // its work goes on
  OK(CU(cuCtxRecordEvent)(context.handle(), event));
  first.wait_for_spinning();
  second.wait_for_spinning();
  CHECK(CU(cuEventQuery)(event) == CUDA_ERROR_NOT_READY);
  *first = 1;
  OK(CU(cuStreamSynchronize)(streams[0]));
  std::this_thread::sleep_for(20ms);
  CHECK(CU(cuEventQuery)(event) == CUDA_ERROR_NOT_READY);
  *second = 1;
  OK(CU(cuEventSynchronize)(event));
  OK(CU(cuEventDestroy)(event));
  OK(CU(cuStreamDestroy)(streams[0]));
}

TEST_CASE("a whole context waits for an event", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no events of contexts: libmpsshim.so makes them of its streams");
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction spin = image.function("spin");
  const CUfunction store = image.function("store");
  SharedWord gate;
  SharedWord before;
  SharedWord after;
  const CUevent event = new_event();
  const CUstream spinning = new_stream();
  const CUstream old = new_stream();
  OK(launch(spin, spinning, 1, 1, gate.address()));
  OK(CU(cuEventRecord)(event, spinning));
  OK(launch(store, old, 1, 1, before.address(), 1u));
  OK(CU(cuCtxWaitEvent)(context.handle(), event));
  const CUstream young = new_stream();
  OK(launch(store, old, 1, 1, after.address(), 1u));
  OK(launch(store, young, 1, 1, after.address() + 4, 1u));
  gate.wait_for_spinning();
  for (int turn = 0; turn < 10'000 && *before == 0; ++turn) std::this_thread::sleep_for(1ms);
  CHECK(*before == 1);  // what was there already does not wait
  std::this_thread::sleep_for(20ms);
  CHECK(*after == 0);
  CHECK(CU(cuStreamQuery)(old) == CUDA_ERROR_NOT_READY);
  CHECK(CU(cuStreamQuery)(young) == CUDA_ERROR_NOT_READY);
  *gate = 1;
  OK(CU(cuStreamSynchronize)(old));
  OK(CU(cuStreamSynchronize)(young));
  CHECK(*after == 1);
  for (const CUstream each : {spinning, old, young}) OK(CU(cuStreamDestroy)(each));
  OK(CU(cuEventDestroy)(event));
}

TEST_CASE("events of a whole context with what is none, and while a stream captures", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no events of contexts: libmpsshim.so makes them of its streams");
  const DeviceContext context;
  const CUevent event = new_event();
  if (refuses_dead_handles()) {
    const auto dead = reinterpret_cast<CUevent>(0x12340000);
    CHECK(CU(cuCtxRecordEvent)(context.handle(), dead) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(CU(cuCtxWaitEvent)(context.handle(), dead) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(CU(cuCtxRecordEvent)(reinterpret_cast<CUcontext>(0x12340000), event) == CUDA_ERROR_INVALID_CONTEXT);
  }
  const CUstream stream = new_stream();
  const auto is_refused = [&](auto&& call) {
    OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(call() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUgraph graph = nullptr;
    CHECK(CU(cuStreamEndCapture)(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  };
  is_refused([&] { return CU(cuCtxRecordEvent)(context.handle(), event); });
  is_refused([&] { return CU(cuCtxWaitEvent)(context.handle(), event); });
  OK(CU(cuCtxRecordEvent)(context.handle(), event));
  OK(CU(cuCtxWaitEvent)(context.handle(), event));
  OK(CU(cuCtxSynchronize)());
  OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuEventDestroy)(event));
}
#endif
