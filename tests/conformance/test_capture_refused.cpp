// SPDX-License-Identifier: Apache-2.0
// What a capture refuses, and what spoils it.
#include <thread>
#include <vector>

#include "capture_calls.hpp"

using namespace mpsshim::test;

TEST_CASE("what a capture refuses before it begins and at its end", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const CUstream stream = new_stream();
  const CUstream side = new_stream();
  const CUevent fork = new_event(CU_EVENT_DISABLE_TIMING);
  CUgraph graph = nullptr;
  CHECK(CU(cuStreamBeginCapture)(nullptr, kGlobal) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(CU(cuStreamBeginCapture)(CU_STREAM_LEGACY, kRelaxed) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(CU(cuStreamBeginCapture)(stream, static_cast<CUstreamCaptureMode>(3)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuStreamEndCapture)(stream, &graph) == CUDA_ERROR_ILLEGAL_STATE);
  OK(CU(cuStreamBeginCapture)(stream, kGlobal));
  CHECK(CU(cuStreamBeginCapture)(stream, kGlobal) == CUDA_ERROR_ILLEGAL_STATE);
  graph = end_capture(stream);  // an empty one
  CHECK(node_count(graph) == 0);
  run(graph, stream);
  OK(CU(cuGraphDestroy)(graph));

  // A fork that is not joined.
  OK(CU(cuStreamBeginCapture)(stream, kGlobal));
  OK(list.launch_one(stream, 1));
  OK(CU(cuEventRecord)(fork, stream));
  OK(CU(cuStreamWaitEvent)(side, fork, 0));
  OK(list.launch_one(side, 2));
  CHECK(CU(cuStreamEndCapture)(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  CHECK(graph == nullptr);
  CHECK(status_of(stream) == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(status_of(side) == CU_STREAM_CAPTURE_STATUS_NONE);

  // Not from the stream it began in.
  for (CUgraph* const place : {&graph, static_cast<CUgraph*>(nullptr)}) {  // which is not what is wrong
    OK(CU(cuStreamBeginCapture)(stream, kGlobal));
    OK(CU(cuEventRecord)(fork, stream));
    OK(CU(cuStreamWaitEvent)(side, fork, 0));
    CHECK(CU(cuStreamEndCapture)(side, place) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CHECK(status_of(stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    (void)CU(cuStreamEndCapture)(stream, &graph);
  }

  // Nor from another thread, unless it is relaxed.
  for (const CUstreamCaptureMode mode : {kGlobal, kThreadLocal, kRelaxed}) {
    OK(CU(cuStreamBeginCapture)(stream, mode));
    CUresult elsewhere = CUDA_SUCCESS;
    std::thread([&] {
      CU(cuCtxSetCurrent)(context.handle());
      elsewhere = CU(cuStreamEndCapture)(stream, &graph);
    }).join();
    CHECK(elsewhere == (mode == kRelaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD));
    if (mode != kRelaxed) (void)CU(cuStreamEndCapture)(stream, &graph);
  }
  OK(CU(cuEventDestroy)(fork));
  OK(CU(cuStreamDestroy)(side));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("waiting for a capturing stream or a captured event spoils the capture", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  const auto begin = [&] {
    OK(CU(cuStreamBeginCapture)(stream, kRelaxed));
    OK(list.launch_one(stream, 1));
    OK(CU(cuEventRecord)(event, stream));
  };
  begin();
  CHECK(CU(cuStreamSynchronize)(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(list.launch_one(stream, 1) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  expect_invalidated(stream);
  begin();
  CHECK(CU(cuStreamQuery)(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_invalidated(stream);
  begin();
  CHECK(CU(cuEventQuery)(event) == CUDA_ERROR_CAPTURED_EVENT);
  expect_invalidated(stream);
  begin();
  CHECK(CU(cuEventSynchronize)(event) == CUDA_ERROR_CAPTURED_EVENT);
  expect_invalidated(stream);
  begin();
  CHECK(CU(cuCtxSynchronize)() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_invalidated(stream);
  CHECK(list.values().empty());
  OK(CU(cuEventDestroy)(event));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a thread that waits for the whole context spoils what other threads capture, whatever its mode", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  CUcontext current = nullptr;
  OK(CU(cuCtxGetCurrent)(&current));
  const CUstream stream = new_stream();
  for (const CUstreamCaptureMode mode : {kGlobal, kThreadLocal, kRelaxed}) {
    OK(CU(cuStreamBeginCapture)(stream, mode));
    CUresult waited = CUDA_SUCCESS;
    std::thread([&] {
      OK(CU(cuCtxSetCurrent)(current));
      waited = CU(cuCtxSynchronize)();
    }).join();
    CHECK(waited == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_invalidated(stream);
  }
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("dependencies do not cross a capture's border", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  const CUstream first = new_stream();
  const CUstream second = new_stream();
  const CUevent plain = new_event(CU_EVENT_DISABLE_TIMING);
  const CUevent captured = new_event(CU_EVENT_DISABLE_TIMING);
  OK(CU(cuEventRecord)(plain, second));
  OK(CU(cuStreamBeginCapture)(first, kRelaxed));
  CHECK(CU(cuStreamWaitEvent)(first, plain, 0) == CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  expect_invalidated(first);
  OK(CU(cuStreamBeginCapture)(first, kRelaxed));
  OK(CU(cuStreamBeginCapture)(second, kRelaxed));
  OK(CU(cuEventRecord)(captured, first));
  CHECK(CU(cuStreamWaitEvent)(second, captured, 0) == CUDA_ERROR_STREAM_CAPTURE_MERGE);
  CUgraph graph = nullptr;
  (void)CU(cuStreamEndCapture)(second, &graph);
  (void)CU(cuStreamEndCapture)(first, &graph);
  OK(CU(cuEventDestroy)(plain));
  OK(CU(cuEventDestroy)(captured));
  OK(CU(cuStreamDestroy)(first));
  OK(CU(cuStreamDestroy)(second));
}

TEST_CASE("the NULL stream cannot be used while a stream captures that it is ordered with", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  DeviceArray<unsigned> memory(4);
  const CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  OK(CU(cuStreamBeginCapture)(blocking, kRelaxed));
  CUstreamCaptureStatus status{};
  CHECK(CU(cuStreamIsCapturing)(nullptr, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK(status_of(blocking) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(list.launch_one(nullptr, 1) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  expect_invalidated(blocking);
  OK(CU(cuStreamBeginCapture)(blocking, kRelaxed));
  unsigned value = 0;
  CHECK(CU(cuMemcpyDtoH)(&value, memory.address(), 4) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  expect_invalidated(blocking);
  OK(list.launch_one(nullptr, 1));
  // A stream that it is not ordered with is nothing to it.
  const CUstream other = new_stream();
  OK(CU(cuStreamBeginCapture)(other, kRelaxed));
  OK(list.launch_one(nullptr, 2));
  OK(CU(cuStreamSynchronize)(nullptr));
  OK(CU(cuGraphDestroy)(end_capture(other)));
  CHECK(list.values() == std::vector<unsigned>{1, 2});
  OK(CU(cuStreamDestroy)(other));
  OK(CU(cuStreamDestroy)(blocking));
}

TEST_CASE("potentially unsafe calls, by the modes of capture and thread", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  const CUstream stream = new_stream();
  const auto allocate = [&] {
    CU(cuCtxSetCurrent)(context.handle());
    CUdeviceptr memory = 0;
    const CUresult result = CU(cuMemAlloc)(&memory, 256);
    if (result != CUDA_SUCCESS) return result;
    // Freeing is unsafe as well; the thread is relaxed for it.
    CUstreamCaptureMode mode = kRelaxed;
    CU(cuThreadExchangeStreamCaptureMode)(&mode);
    CU(cuMemFree)(memory);
    CU(cuThreadExchangeStreamCaptureMode)(&mode);
    return result;
  };
  const auto elsewhere = [&](CUstreamCaptureMode mode) {
    CUresult result = CUDA_SUCCESS;
    std::thread([&] {
      CU(cuThreadExchangeStreamCaptureMode)(&mode);
      result = allocate();
    }).join();
    return result;
  };
  for (const CUstreamCaptureMode mode : {kGlobal, kThreadLocal, kRelaxed}) {
    const auto expect = [&](CUresult result, bool is_permitted) {
      CHECK(result == (is_permitted ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
      if (!is_permitted) return expect_invalidated(stream);
      OK(CU(cuGraphDestroy)(end_capture(stream)));
    };
    OK(CU(cuStreamBeginCapture)(stream, mode));
    expect(allocate(), mode == kRelaxed);
    OK(CU(cuStreamBeginCapture)(stream, mode));
    expect(elsewhere(kGlobal), mode != kGlobal);
    OK(CU(cuStreamBeginCapture)(stream, mode));
    expect(elsewhere(kThreadLocal), true);
    OK(CU(cuStreamBeginCapture)(stream, mode));
    expect(elsewhere(kRelaxed), true);
    CUstreamCaptureMode own = kRelaxed;
    OK(CU(cuThreadExchangeStreamCaptureMode)(&own));
    CHECK(own == kGlobal);
    OK(CU(cuStreamBeginCapture)(stream, mode));
    expect(allocate(), true);
    OK(CU(cuThreadExchangeStreamCaptureMode)(&own));
    CHECK(own == kRelaxed);
  }
  if (driver_kind() != DriverKind::real) {  // which takes any mode, and does not look at the pointer
    auto unknown = static_cast<CUstreamCaptureMode>(3);
    CHECK(CU(cuThreadExchangeStreamCaptureMode)(&unknown) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CU(cuThreadExchangeStreamCaptureMode)(nullptr) == CUDA_ERROR_INVALID_VALUE);
  }
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("an event query of another thread spoils a global capture only", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  const auto query = [&] {
    CUresult result = CUDA_SUCCESS;
    std::thread([&] {
      CU(cuCtxSetCurrent)(context.handle());
      result = CU(cuEventQuery)(event);
    }).join();
    return result;
  };
  OK(CU(cuStreamBeginCapture)(stream, kThreadLocal));
  CHECK(query() == CUDA_SUCCESS);
  OK(CU(cuGraphDestroy)(end_capture(stream)));
  OK(CU(cuStreamBeginCapture)(stream, kGlobal));
  CHECK(query() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_invalidated(stream);
  OK(CU(cuEventDestroy)(event));
  OK(CU(cuStreamDestroy)(stream));
}
