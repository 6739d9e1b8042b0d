// SPDX-License-Identifier: Apache-2.0
// Streams, events, graphs and kernels of green contexts.
#include <vector>

#include "graph_calls.hpp"
#include "green_context.hpp"
#include "kernel_list.hpp"
#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

#if CUDA_VERSION >= 13000
TEST_CASE("streams of a green context run launches in order", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const Green green;
  CUstream refused = nullptr;
  CHECK(CU(cuGreenCtxStreamCreate)(&refused, green.handle(), CU_STREAM_DEFAULT, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGreenCtxStreamCreate)(nullptr, green.handle(), CU_STREAM_NON_BLOCKING, 0) == CUDA_ERROR_INVALID_VALUE);
  const CUstream stream = green.stream();
  for (const unsigned count : {1u, 3u, 70u, 200u}) {
    list.clear();
    for (unsigned i = 0; i < count; ++i) OK(list.launch_one(stream, i));
    OK(CU(cuStreamSynchronize)(stream));
    const std::vector<unsigned> values = list.values();
    REQUIRE(values.size() == count);
    for (unsigned i = 0; i < count; ++i) CHECK(values[i] == i);
  }
  CHECK(green.of(stream) == green.handle());
  unsigned flags = 0;
  OK(CU(cuStreamGetFlags)(stream, &flags));
  CHECK(flags == CU_STREAM_NON_BLOCKING);
  CUcontext of_stream = nullptr;
  OK(CU(cuStreamGetCtx)(stream, &of_stream));
  if (!is_cpu_driver()) {
    CUgreenCtx green_of_stream = nullptr;
    OK((driver_symbol<CUresult (*)(CUstream, CUcontext*, CUgreenCtx*)>("cuStreamGetCtx_v2")(stream, &of_stream, &green_of_stream)));
    CHECK(of_stream == context.handle());
    CHECK(green_of_stream == green.handle());
  }
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("events order green and ordinary streams", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction spin = image.function("spin");
  const CUfunction store = image.function("store");
  const Green green;
  SharedWord word;
  DeviceArray<unsigned> value(2);
  const CUstream streams[2] = {green.stream(), new_stream()};
  for (const int first : {0, 1}) {
    *word = 0;
    const CUevent event = new_event();
    OK(launch(spin, streams[first], 1, 1, word.address()));
    OK(launch(store, streams[first], 1, 1, value.address(), 1u + static_cast<unsigned>(first)));
    OK(CU(cuEventRecord)(event, streams[first]));
    OK(CU(cuStreamWaitEvent)(streams[1 - first], event, 0));
    OK(CU(cuMemcpyDtoDAsync)(value.address() + 4, value.address(), 4, streams[1 - first]));
    CHECK(CU(cuStreamQuery)(streams[1 - first]) == CUDA_ERROR_NOT_READY);
    *word = 1;
    OK(CU(cuStreamSynchronize)(streams[1 - first]));
    CHECK(value[1] == 1u + static_cast<unsigned>(first));
    OK(CU(cuEventSynchronize)(event));
    OK(CU(cuEventDestroy)(event));
  }
  for (const CUstream stream : streams) OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a green context's NULL stream is its own and ordered with none", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction spin = image.function("spin");
  const CUfunction store = image.function("store");
  DeviceArray<unsigned> word(1);
  SharedWord until;
  const Green green;
  CUstream other = nullptr;
  {
    const Current current(green.context());
    OK(CU(cuStreamCreate)(&other, CU_STREAM_DEFAULT));
    unsigned flags = 0;
    OK(CU(cuStreamGetFlags)(other, &flags));
    CHECK(flags == CU_STREAM_NON_BLOCKING);  // whatever was asked for
    OK(launch(spin, nullptr, 1, 1, until.address()));
    until.wait_for_spinning();
    OK(launch(store, other, 1, 1, word.address(), 1u));
    OK(CU(cuStreamSynchronize)(other));
    CHECK(CU(cuStreamQuery)(other) == CUDA_SUCCESS);
    CHECK(CU(cuStreamQuery)(nullptr) == CUDA_ERROR_NOT_READY);
  }
  CHECK(word[0] == 1);
  OK(launch(store, nullptr, 1, 1, word.address(), 2u));  // the primary context's
  OK(CU(cuStreamSynchronize)(nullptr));
  CHECK(word[0] == 2);
  {
    const Current current(green.context());
    *until = 1;
    OK(CU(cuStreamSynchronize)(nullptr));
    CHECK(CU(cuStreamQuery)(nullptr) == CUDA_SUCCESS);
    // Nor does it wait for another stream.
    *until = 0;
    OK(launch(spin, other, 1, 1, until.address()));
    OK(launch(store, nullptr, 1, 1, word.address(), 3u));
    OK(CU(cuStreamSynchronize)(nullptr));
    CHECK(CU(cuStreamQuery)(other) == CUDA_ERROR_NOT_READY);
  }
  CHECK(word[0] == 3);
  *until = 1;
  OK(CU(cuStreamSynchronize)(other));
  OK(CU(cuStreamDestroy)(other));
}

TEST_CASE("streams whose green context is gone", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction store = image.function("store");
  DeviceArray<unsigned> word(1);
  Green green;
  const CUstream orphan = green.stream();
  OK(launch(store, orphan, 1, 1, word.address(), 1u));
  OK(CU(cuStreamSynchronize)(orphan));
  green.end();
  CHECK(CU(cuStreamQuery)(orphan) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(launch(store, orphan, 1, 1, word.address(), 2u) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(CU(cuStreamDestroy)(orphan) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(word[0] == 1);
}

TEST_CASE("kernels keep to the multiprocessors of their green context, in runs and alone", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction mark = image.function("mark_multiprocessor");
  const Green green;
  CUdevResource has{};
  OK(CU(cuGreenCtxGetDevResource)(green.handle(), &has, CU_DEV_RESOURCE_TYPE_SM));
  const CUstream streams[2] = {green.stream(), new_stream()};
  for (const CUstream stream : streams) {
    for (const unsigned launches : {1u, 8u, 100u}) {
      DeviceArray<unsigned> seen(1024);
      for (unsigned i = 0; i < launches; ++i) OK(launch(mark, stream, 2048, 64, seen.address()));
      OK(CU(cuStreamSynchronize)(stream));
      std::vector<unsigned> marks(1024);
      OK(CU(cuMemcpyDtoH)(marks.data(), seen.address(), marks.size() * sizeof(unsigned)));
      unsigned used = 0;
      unsigned threads = 0;
      for (const unsigned each : marks) {
        used += each != 0 ? 1 : 0;
        threads += each;
      }
      INFO("launches " << launches << ", " << used << " multiprocessors of " << has.sm.smCount);
      CHECK(threads == launches * 2048 * 64);
      if (is_cpu_device()) continue;                                // it restricts nothing
      if (stream == streams[0]) CHECK(used <= has.sm.smCount + 2);  // "may use and share an additional set of 2" (manual)
      if (stream == streams[1]) CHECK(used > has.sm.smCount + 2);
    }
  }
  for (const CUstream stream : streams) OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a graph's kernels keep to the green context that they were captured or added in", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver captures nothing: libmpsshim.so does");
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction mark = image.function("mark_multiprocessor");
  const Green green;
  CUdevResource has{};
  OK(CU(cuGreenCtxGetDevResource)(green.handle(), &has, CU_DEV_RESOURCE_TYPE_SM));
  DeviceArray<unsigned> seen(1024);
  CUdeviceptr address = seen.address();
  void* arguments[] = {&address};
  const CUstream own = green.stream();
  const CUstream ordinary = new_stream();
  CUgraph graphs[2] = {};
  OK(CU(cuStreamBeginCapture)(own, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(launch(mark, own, 2048, 64, address));
  OK(CU(cuStreamEndCapture)(own, &graphs[0]));
  graphs[1] = new_graph();
  {
    const Current current(green.context());
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = mark;
    params.gridDimX = 2048;
    params.blockDimX = 64;
    params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    CUgraphNode node = nullptr;
    OK(CU(cuGraphAddKernelNode)(&node, graphs[1], nullptr, 0, &params));
  }
  for (CUgraph graph : graphs) {
    const CUgraphExec exec = instantiated(graph);
    for (const CUstream stream : {ordinary, own}) {
      OK(CU(cuMemsetD8)(address, 0, 1024 * sizeof(unsigned)));
      OK(CU(cuCtxSynchronize)());
      OK(CU(cuGraphLaunch)(exec, stream));
      OK(CU(cuStreamSynchronize)(stream));
      std::vector<unsigned> marks(1024);
      OK(CU(cuMemcpyDtoH)(marks.data(), address, marks.size() * sizeof(unsigned)));
      unsigned used = 0;
      unsigned threads = 0;
      for (const unsigned each : marks) {
        used += each != 0 ? 1 : 0;
        threads += each;
      }
      INFO((graph == graphs[0] ? "captured" : "added")
           << ", launched in " << (stream == own ? "its own" : "an ordinary") << " stream: " << used << " multiprocessors of " << has.sm.smCount);
      CHECK(threads == 2048 * 64);
      if (!is_cpu_device()) CHECK(used <= has.sm.smCount + 2);
    }
    OK(CU(cuGraphExecDestroy)(exec));
    OK(CU(cuGraphDestroy)(graph));
  }
  for (const CUstream stream : {own, ordinary}) OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a cooperative grid has to fit the green context", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction add = image.function("add_to");
  const Green green;
  CUdevResource has{};
  OK(CU(cuGreenCtxGetDevResource)(green.handle(), &has, CU_DEV_RESOURCE_TYPE_SM));
  int resident = 0;
  OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&resident, add, 128, 0));
  DeviceArray<unsigned> sum(1);
  CUdeviceptr address = sum.address();
  unsigned one = 1;
  void* arguments[] = {&address, &one};
  const unsigned most = static_cast<unsigned>(resident) * has.sm.smCount;
  const CUstream stream = green.stream();
  OK(CU(cuLaunchCooperativeKernel)(add, most, 1, 1, 128, 1, 1, 0, stream, arguments));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(sum[0] == most * 128);
  CHECK(CU(cuLaunchCooperativeKernel)(add, most + 1, 1, 1, 128, 1, 1, 0, stream, arguments) == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("an event of a green context comes behind its streams alone", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no events of contexts: libmpsshim.so makes them of its streams");
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction spin = image.function("spin");
  const CUfunction store = image.function("store");
  const Green green;
  SharedWord inside;
  SharedWord outside;
  DeviceArray<unsigned> word(1);
  const CUevent event = new_event();
  const CUstream own = green.stream();
  const CUstream foreign = new_stream();
  OK(launch(spin, foreign, 1, 1, outside.address()));
  outside.wait_for_spinning();
  OK(CU(cuGreenCtxRecordEvent)(green.handle(), event));
  OK(CU(cuEventSynchronize)(event));  // whatever the other stream does
  OK(launch(spin, own, 1, 1, inside.address()));
  OK(CU(cuGreenCtxRecordEvent)(green.handle(), event));
  CHECK(CU(cuEventQuery)(event) == CUDA_ERROR_NOT_READY);
  *inside = 1;
  OK(CU(cuEventSynchronize)(event));

  OK(CU(cuEventRecord)(event, foreign));
  OK(CU(cuGreenCtxWaitEvent)(green.handle(), event));
  OK(launch(store, own, 1, 1, word.address(), 1u));
  const CUstream third = new_stream();
  OK(launch(store, third, 1, 1, word.address(), 2u));
  OK(CU(cuStreamSynchronize)(third));  // not of the green context
  CHECK(CU(cuStreamQuery)(own) == CUDA_ERROR_NOT_READY);
  *outside = 1;
  OK(CU(cuStreamSynchronize)(own));
  CHECK(word[0] == 1);
  CHECK(CU(cuGreenCtxRecordEvent)(green.handle(), nullptr) == CUDA_ERROR_INVALID_HANDLE);
  for (const CUstream stream : {own, foreign, third}) OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuEventDestroy)(event));
}
#endif
