// SPDX-License-Identifier: Apache-2.0
// What a capture records.
#include <thread>
#include <vector>

#include "capture_calls.hpp"

using namespace mpsshim::test;

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

TEST_CASE("a joined stream may be destroyed before its capture ends", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const CUstream origin = new_stream();
  OK(CU(cuStreamBeginCapture)(origin, kGlobal));
  OK(list.launch_one(origin, 1));
  // As a library does that makes streams and events of its own for one call.
  for (unsigned i = 2; i <= 3; ++i) {
    const CUstream side = new_stream();
    const CUevent fork = new_event(CU_EVENT_DISABLE_TIMING);
    const CUevent join = new_event(CU_EVENT_DISABLE_TIMING);
    OK(CU(cuEventRecord)(fork, origin));
    OK(CU(cuStreamWaitEvent)(side, fork, 0));
    OK(list.launch_one(side, i));
    OK(CU(cuEventRecord)(join, side));
    OK(CU(cuStreamWaitEvent)(origin, join, 0));
    OK(CU(cuStreamDestroy)(side));
    OK(CU(cuEventDestroy)(fork));
    OK(CU(cuEventDestroy)(join));
    CHECK(status_of(origin) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  }
  OK(list.launch_one(origin, 4));
  const CUgraph graph = end_capture(origin);
  CHECK(node_count(graph) == 4);
  run(graph, origin);
  CHECK(list.values() == std::vector<unsigned>{1, 2, 3, 4});
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuStreamDestroy)(origin));
}

TEST_CASE("a stream that was destroyed before it was joined leaves its capture unjoined", "[forwarded]") {
  SKIP_WITHOUT_CAPTURE();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const CUstream origin = new_stream();
  const CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
  const auto fork = [&] {
    const CUstream side = new_stream();
    OK(CU(cuStreamBeginCapture)(origin, kGlobal));
    OK(CU(cuEventRecord)(event, origin));
    OK(CU(cuStreamWaitEvent)(side, event, 0));
    OK(list.launch_one(side, 1));
    return side;
  };
  OK(CU(cuStreamDestroy)(fork()));
  CUgraph graph = nullptr;
  CHECK(CU(cuStreamEndCapture)(origin, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  CHECK(graph == nullptr);
  // Its event joins it all the same.
  const CUstream side = fork();
  OK(CU(cuEventRecord)(event, side));
  OK(CU(cuStreamDestroy)(side));
  OK(CU(cuStreamWaitEvent)(origin, event, 0));
  graph = end_capture(origin);
  CHECK(node_count(graph) == 1);
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuEventDestroy)(event));
  OK(CU(cuStreamDestroy)(origin));
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
