// SPDX-License-Identifier: Apache-2.0
// Stream capture. The CPU driver has none: its cases are for the real driver and for the broker.
#pragma once

#include <vector>

#include "graph_calls.hpp"
#include "kernel_list.hpp"
#include "shared_word.hpp"

#define SKIP_WITHOUT_CAPTURE() \
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no stream capture")

namespace mpsshim::test {

inline constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
inline constexpr auto kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
inline constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

inline CUstreamCaptureStatus status_of(CUstream stream) {
  CUstreamCaptureStatus status{};
  OK(CU(cuStreamIsCapturing)(stream, &status));
  return status;
}

// Launches the graph once and waits for its end.
inline void run(CUgraph graph, CUstream stream) {
  const CUgraphExec exec = instantiated(graph);
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuGraphExecDestroy)(exec));
}

inline CUgraph end_capture(CUstream stream) {
  CUgraph graph = nullptr;
  OK(CU(cuStreamEndCapture)(stream, &graph));
  REQUIRE(graph != nullptr);
  return graph;
}

// The capture has been spoilt: its end says so, and the stream is an ordinary one again.
inline void expect_invalidated(CUstream stream) {
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

inline Info info_of(CUstream stream) {
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

}  // namespace mpsshim::test
