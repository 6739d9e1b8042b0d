// SPDX-License-Identifier: Apache-2.0
// Stream capture (CUDA Driver API manual, "Stream Management").
#include "gen/api_declarations.hpp"
#include "interposer/forward/graphs/capture.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

template <typename F>
CUresult with_captured_stream(CUstream handle, F&& f) {
  if (const CUresult error = begin_on(handle); error != CUDA_SUCCESS) return error;
  Stream* stream = Streams::instance().resolve(handle);
  return stream != nullptr ? f(*stream) : CUDA_ERROR_INVALID_HANDLE;
}

bool is_mode(CUstreamCaptureMode mode) { return mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && mode <= CU_STREAM_CAPTURE_MODE_RELAXED; }

bool has_port(const CUgraphEdgeData& edge) { return edge.from_port != 0 || edge.to_port != 0 || edge.type != 0; }

template <typename T, typename U>
void store(T* out, const U& value) {
  if (out != nullptr) *out = value;
}

}  // namespace

CUresult cuStreamBeginCapture(CUstream hStream) { return api::cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL); }

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  if (!is_mode(mode)) return CUDA_ERROR_INVALID_VALUE;
  return with_captured_stream(hStream, [&](Stream& stream) { return Captures::instance().begin(stream, mode, nullptr, {}, nullptr); });
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode* dependencies, const CUgraphEdgeData* dependencyData,
                                     size_t numDependencies, CUstreamCaptureMode mode) {
  if (!is_mode(mode) || hGraph == nullptr || (numDependencies != 0 && dependencies == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  return with_captured_stream(hStream, [&](Stream& stream) {
    return Captures::instance().begin(stream, mode, hGraph, {dependencies, numDependencies}, dependencyData);
  });
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
  return with_captured_stream(hStream, [&](Stream& stream) { return Captures::instance().end(stream, phGraph); });
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
  return api::cuStreamGetCaptureInfo(hStream, captureStatus, nullptr);
}

CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out) {
  return api::cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, nullptr, nullptr, nullptr, nullptr);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out, CUgraph* graph_out,
                                   const CUgraphNode** dependencies_out, size_t* numDependencies_out) {
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
  const CUresult error = api::cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, graph_out, dependencies_out, &edges, &count);
  store(numDependencies_out, count);
  if (error != CUDA_SUCCESS || dependencies_out == nullptr) return error;
  for (size_t i = 0; i < count; ++i) {
    if (has_port(edges[i])) return CUDA_ERROR_LOSSY_QUERY;
  }
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out, CUgraph* graph_out,
                                   const CUgraphNode** dependencies_out, const CUgraphEdgeData** edgeData_out, size_t* numDependencies_out) {
  if (captureStatus_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_captured_stream(hStream, [&](Stream& stream) {
    Captures::Info info;
    const CUresult error = Captures::instance().info(stream, info);
    if (error != CUDA_SUCCESS) return error;
    *captureStatus_out = info.status;
    store(id_out, info.id);
    store(graph_out, info.graph);
    store(dependencies_out, info.before.data());
    store(edgeData_out, info.edges.data());
    store(numDependencies_out, info.before.size());
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode* dependencies, size_t numDependencies, unsigned int flags) {
  return api::cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, nullptr, numDependencies, flags);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode* dependencies, const CUgraphEdgeData* dependencyData,
                                              size_t numDependencies, unsigned int flags) {
  if (flags != CU_STREAM_ADD_CAPTURE_DEPENDENCIES && flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
  if (numDependencies != 0 && dependencies == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_captured_stream(hStream, [&](Stream& stream) {
    return Captures::instance().set_dependencies(stream, {dependencies, numDependencies}, dependencyData,
                                                 flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES);
  });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || !is_mode(*mode)) return CUDA_ERROR_INVALID_VALUE;
  *mode = Captures::exchange_mode(*mode);
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::api
