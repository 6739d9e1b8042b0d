// SPDX-License-Identifier: Apache-2.0
// Stream capture. The CPU driver has none: these cases are for the real driver and for the broker.
#include <thread>
#include <vector>

#include "kernel_list.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

namespace {

#define SKIP_WITHOUT_CAPTURE() \
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no stream capture")

constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr auto kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

CUstreamCaptureStatus status_of(CUstream stream) {
  CUstreamCaptureStatus status{};
  OK(CU(cuStreamIsCapturing)(stream, &status));
  return status;
}

// Launches the graph once and waits for its end.
void run(CUgraph graph, CUstream stream) {
  const CUgraphExec exec = instantiated(graph);
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuGraphExecDestroy)(exec));
}

CUgraph end_capture(CUstream stream) {
  CUgraph graph = nullptr;
  OK(CU(cuStreamEndCapture)(stream, &graph));
  REQUIRE(graph != nullptr);
  return graph;
}

// The capture has been spoilt: its end says so, and the stream is an ordinary one again.
void expect_invalidated(CUstream stream) {
  CHECK(status_of(stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CUgraph graph = reinterpret_cast<CUgraph>(1);
  CHECK(CU(cuStreamEndCapture)(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(graph == nullptr);
  CHECK(status_of(stream) == CU_STREAM_CAPTURE_STATUS_NONE);
  OK(CU(cuStreamSynchronize)(stream));
}

struct Info {
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  std::vector<CUgraphNode> before;
};

Info info_of(CUstream stream) {
  Info info;
  const CUgraphNode* nodes = nullptr;
  size_t count = 0;
#if CUDA_VERSION >= 13000
  const CUgraphEdgeData* edges = nullptr;
  OK(CU(cuStreamGetCaptureInfo)(stream, &info.status, &info.id, &info.graph, &nodes, &edges, &count));
#else
  OK(CU(cuStreamGetCaptureInfo)(stream, &info.status, &info.id, &info.graph, &nodes, &count));
#endif
  info.before.assign(nodes, nodes + count);
  return info;
}

}  // namespace

TEST_CASE("captured launches do not run, the graph runs them as often as it is launched", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const CUstream stream = new_stream();
  for (const CUstreamCaptureMode mode : {kGlobal, kThreadLocal, kRelaxed}) {
    list.clear();
    OK(CU(cuStreamBeginCapture)(stream, mode));
    CHECK(status_of(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    for (unsigned i = 1; i <= 3; ++i) OK(list.launch_one(stream, i));
    const CUgraph graph = end_capture(stream);
    CHECK(status_of(stream) == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(node_count(graph) == 3);
    OK(CU(cuStreamSynchronize)(stream));
    CHECK(list.values().empty());
    const CUgraphExec exec = instantiated(graph);
    OK(CU(cuGraphDestroy)(graph));
    OK(CU(cuGraphLaunch)(exec, stream));
    OK(list.launch_one(stream, 9));
    OK(CU(cuGraphLaunch)(exec, stream));
    OK(CU(cuStreamSynchronize)(stream));
    CHECK(list.values() == std::vector<unsigned>{1, 2, 3, 9, 1, 2, 3});
    OK(CU(cuGraphExecDestroy)(exec));
  }
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("captured copies and fills", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  const SharedWord word;
  const auto host = reinterpret_cast<unsigned*>(word.address());
  DeviceArray<unsigned> first(64), second(64);
  const CUstream stream = new_stream();
  OK(CU(cuStreamBeginCapture)(stream, kGlobal));
  OK(CU(cuMemsetD32Async)(first.address(), 7, 64, stream));
  OK(CU(cuMemcpyHtoDAsync)(first.address() + 4, host + 100, 4, stream));
  OK(CU(cuMemcpyDtoDAsync)(second.address(), first.address(), 256, stream));
  OK(CU(cuMemcpyDtoHAsync)(host + 200, second.address(), 16, stream));
  OK(CU(cuMemcpyAsync)(second.address() + 8, word.address() + 400, 4, stream));
  const CUgraph graph = end_capture(stream);
  CHECK(node_count(graph) == 5);
  CHECK(first[0] == 0);
  for (unsigned round = 1; round <= 2; ++round) {
    host[100] = round;
    run(graph, stream);
    CHECK(first[0] == 7);
    CHECK(first[1] == round);
    CHECK(second[1] == round);
    CHECK(second[2] == round);
    CHECK(second[63] == 7);
    CHECK((host[200] == 7 && host[201] == round && host[202] == 7));
  }
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("events carry a capture to other streams and back", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const CUstream origin = new_stream();
  const CUstream side = new_stream();
  const CUevent fork = new_event(CU_EVENT_DISABLE_TIMING);
  const CUevent join = new_event(CU_EVENT_DISABLE_TIMING);
  OK(CU(cuStreamBeginCapture)(origin, kGlobal));
  OK(list.launch_one(origin, 1));
  OK(CU(cuEventRecord)(fork, origin));
  OK(CU(cuStreamWaitEvent)(side, fork, 0));
  CHECK(status_of(side) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(info_of(side).id == info_of(origin).id);
  OK(list.launch_one(side, 2));
  OK(CU(cuEventRecord)(join, side));
  OK(CU(cuStreamWaitEvent)(origin, join, 0));
  CHECK(info_of(origin).before.size() == 2);
  OK(list.launch_one(origin, 3));
  CHECK(info_of(origin).before.size() == 1);
  {  // the version of CUDA 12
    CUstreamCaptureStatus status{};
    cuuint64_t id = 0;
    CUgraph captured = nullptr;
    const CUgraphNode* nodes = nullptr;
    size_t count = 0;
    OK(call("cuStreamGetCaptureInfo_v2", origin, &status, &id, &captured, &nodes, &count));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK(id == info_of(origin).id);
    CHECK(count == 1);
  }
  const CUgraph graph = end_capture(origin);
  CHECK(status_of(side) == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(node_count(graph) == 3);
  size_t edges = 0;
#if CUDA_VERSION >= 13000
  OK(CU(cuGraphGetEdges)(graph, nullptr, nullptr, nullptr, &edges));
#else
  OK(CU(cuGraphGetEdges)(graph, nullptr, nullptr, &edges));
#endif
  CHECK(edges == 3);  // 1 before 2, 1 and 2 before 3
  run(graph, origin);
  CHECK(list.values() == std::vector<unsigned>{1, 2, 3});
  OK(CU(cuGraphDestroy)(graph));
  // The events are ordinary ones again as soon as they are recorded in an ordinary stream.
  CHECK(CU(cuEventQuery)(fork) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuEventRecord)(fork, side));
  OK(CU(cuEventSynchronize)(fork));
  OK(CU(cuEventDestroy)(fork));
  OK(CU(cuEventDestroy)(join));
  OK(CU(cuStreamDestroy)(side));
  OK(CU(cuStreamDestroy)(origin));
}

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

TEST_CASE("a capture's graph and dependencies can be asked for and changed", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const CUstream stream = new_stream();
  CHECK(info_of(stream).status == CU_STREAM_CAPTURE_STATUS_NONE);
  OK(CU(cuStreamBeginCapture)(stream, kRelaxed));
  const Info empty = info_of(stream);
  CHECK(empty.status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(empty.id != 0);
  CHECK(empty.before.empty());
  OK(list.launch_one(stream, 1));
  Info info = info_of(stream);
  REQUIRE(info.before.size() == 1);
  CHECK(info.graph == empty.graph);
  // A node of the application's own takes its place in the stream.
  CUgraphNode own = list.add(info.graph, 2, info.before);
#if CUDA_VERSION >= 13000
  OK(CU(cuStreamUpdateCaptureDependencies)(stream, &own, nullptr, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  CHECK(CU(cuStreamUpdateCaptureDependencies)(stream, &own, nullptr, 1, 7) == CUDA_ERROR_INVALID_VALUE);
#else
  OK(CU(cuStreamUpdateCaptureDependencies)(stream, &own, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  CHECK(CU(cuStreamUpdateCaptureDependencies)(stream, &own, 1, 7) == CUDA_ERROR_INVALID_VALUE);
#endif
  OK(list.launch_one(stream, 3));
  const CUgraph graph = end_capture(stream);
  CHECK(graph == info.graph);
  run(graph, stream);
  CHECK(list.values() == std::vector<unsigned>{1, 2, 3});

  // Into a graph that is there, behind a node of it.
  list.clear();
  OK(CU(cuStreamBeginCaptureToGraph)(stream, graph, &own, nullptr, 1, kRelaxed));
  OK(list.launch_one(stream, 4));
  CHECK(end_capture(stream) == graph);
  CHECK(node_count(graph) == 4);
  run(graph, stream);
  CHECK(list.values().size() == 4);
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("external events become nodes", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const SharedWord gate;
  const CUfunction spin = image.function("spin");
  const CUstream stream = new_stream();
  const CUstream other = new_stream();
  const CUevent before = new_event();
  const CUevent after = new_event();
  CHECK(CU(cuEventRecordWithFlags)(after, stream, CU_EVENT_RECORD_EXTERNAL) == CUDA_ERROR_ILLEGAL_STATE);
  OK(CU(cuStreamBeginCapture)(stream, kRelaxed));
  OK(CU(cuStreamWaitEvent)(stream, before, CU_EVENT_WAIT_EXTERNAL));
  OK(list.launch_one(stream, 2));
  OK(CU(cuEventRecordWithFlags)(after, stream, CU_EVENT_RECORD_EXTERNAL));
  const CUgraph graph = end_capture(stream);
  CHECK(node_count(graph) == 3);
  const CUgraphExec exec = instantiated(graph);
  OK(launch(spin, other, 1, 1, gate.address()));
  OK(list.launch_one(other, 1));
  OK(CU(cuEventRecord)(before, other));
  OK(CU(cuGraphLaunch)(exec, stream));
  gate.wait_for_spinning();
  CHECK(CU(cuEventQuery)(after) == CUDA_ERROR_NOT_READY);
  OK(CU(cuStreamWaitEvent)(other, after, 0));
  OK(list.launch_one(other, 3));
  *const_cast<SharedWord&>(gate) = 1;
  OK(CU(cuEventSynchronize)(after));
  OK(CU(cuStreamSynchronize)(other));
  CHECK(list.values() == std::vector<unsigned>{1, 2, 3});
  float milliseconds = -1;
  OK(CU(cuEventElapsedTime)(&milliseconds, before, after));
  CHECK(milliseconds >= 0);
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuEventDestroy)(before));
  OK(CU(cuEventDestroy)(after));
  OK(CU(cuStreamDestroy)(other));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("captures in several threads at once", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  const LoadedImage image;
  constexpr unsigned kThreads = 4, kRounds = 25, kKernels = 40;
  DeviceArray<unsigned> sums(kThreads);
  const CUfunction add = image.function("add_to");
  std::vector<std::thread> threads;
  std::vector<unsigned> failures(kThreads, 0);
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      CU(cuCtxSetCurrent)(context.handle());
      CUstream stream = nullptr;
      if (CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) ++failures[t];
      for (unsigned round = 0; round < kRounds; ++round) {
        CUgraph graph = nullptr;
        CUgraphExec exec = nullptr;
        failures[t] += CU(cuStreamBeginCapture)(stream, kThreadLocal) != CUDA_SUCCESS;
        for (unsigned i = 0; i < kKernels; ++i) {
          failures[t] += launch(add, stream, 1, 1, sums.address() + 4 * t, 1u) != CUDA_SUCCESS;
        }
        failures[t] += CU(cuStreamEndCapture)(stream, &graph) != CUDA_SUCCESS;
        failures[t] += CU(cuGraphInstantiateWithFlags)(&exec, graph, 0) != CUDA_SUCCESS;
        failures[t] += CU(cuGraphLaunch)(exec, stream) != CUDA_SUCCESS;
        failures[t] += CU(cuGraphLaunch)(exec, stream) != CUDA_SUCCESS;
        failures[t] += CU(cuGraphExecDestroy)(exec) != CUDA_SUCCESS;
        failures[t] += CU(cuGraphDestroy)(graph) != CUDA_SUCCESS;
      }
      failures[t] += CU(cuStreamSynchronize)(stream) != CUDA_SUCCESS;
      failures[t] += CU(cuStreamDestroy)(stream) != CUDA_SUCCESS;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (unsigned t = 0; t < kThreads; ++t) {
    CHECK(failures[t] == 0);
    CHECK(sums[t] == 2 * kRounds * kKernels);
  }
}
