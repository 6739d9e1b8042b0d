// SPDX-License-Identifier: Apache-2.0
// Contexts with a part of the multiprocessors (cuCtxCreate_v3 and _v4 with an execution affinity). The real driver makes such contexts beneath
// NVIDIA's MPS alone.
#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "green_context.hpp"
#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;
using namespace std::chrono_literals;

#if CUDA_VERSION >= 13000
namespace {

bool makes_parts() { return driver_kind() == DriverKind::forwarded; }
constexpr const char* kNative = "natively only beneath NVIDIA's MPS";

CUexecAffinityParam affinity_of(unsigned multiprocessors) {
  CUexecAffinityParam affinity{};
  affinity.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
  affinity.param.smCount.val = multiprocessors;
  return affinity;
}

// Current, and gone at its end.
class Part {
 public:
  explicit Part(unsigned multiprocessors, unsigned flags = 0) {
    CUexecAffinityParam affinity = affinity_of(multiprocessors);
    OK(call("cuCtxCreate_v3", &context_, &affinity, 1, flags, CUdevice{0}));
  }
  ~Part() { end(); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  void end() {
    if (context_ != nullptr) OK(CU(cuCtxDestroy)(context_));
    context_ = nullptr;
  }
  CUcontext handle() const { return context_; }

 private:
  CUcontext context_ = nullptr;
};

// Such a context, and what holds its streams.
struct Gated {
  const Part part{multiprocessors() / 2};
  const GateKernels kernels;
  SharedWord gate;
  const CUstream blocking = new_stream(CU_STREAM_DEFAULT);

  Gated() { launch_once(kernels.store); }
  ~Gated() { CU(cuStreamDestroy)(blocking); }
  Gated(const Gated&) = delete;
  Gated& operator=(const Gated&) = delete;
};

unsigned affinity_of_current() {
  CUexecAffinityParam affinity{};
  OK(CU(cuCtxGetExecAffinity)(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
  CHECK(affinity.type == CU_EXEC_AFFINITY_TYPE_SM_COUNT);
  return affinity.param.smCount.val;
}

std::set<unsigned> read(const DeviceArray<unsigned>& marks, unsigned count) {
  std::set<unsigned> found;
  for (unsigned i = 0; i < count; ++i) {
    if (marks[i] != 0) found.insert(i);
  }
  return found;
}

// On which multiprocessors kernels of a stream run.
std::set<unsigned> places_of(CUfunction mark, CUstream stream) {
  constexpr unsigned kMost = 512;
  const DeviceArray<unsigned> marks(kMost);
  for (int turn = 0; turn < 4; ++turn) OK(launch(mark, stream, 4'096, 32, marks.address()));
  OK(CU(cuStreamSynchronize)(stream));
  return read(marks, kMost);
}

}  // namespace

TEST_CASE("a context has the multiprocessors that it was made for, rounded up, in all its streams", "[forwarded]") {
  if (!makes_parts()) MPSSHIM_SKIP(kNative);
  OK(CU(cuInit)(0));
  int supported = 0;
  OK(CU(cuDeviceGetExecAffinitySupport)(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0));
  REQUIRE(supported == 1);
  const unsigned all = multiprocessors();
  const Part part(all / 4 + 1);
  const unsigned own = affinity_of_current();
  CHECK(own > all / 4);
  CHECK(own <= all / 4 + 8);
  CUdevResource resource{};
  OK(CU(cuCtxGetDevResource)(part.handle(), &resource, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(resource.sm.smCount == own);
  const LoadedImage image;
  const CUfunction mark = image.function("mark_multiprocessor");
  const std::set<unsigned> places = places_of(mark, nullptr);
  CHECK(places.size() <= own + 2);  // as with green contexts
  CHECK(!places.empty());
  for (const unsigned flags : {0U, unsigned{CU_STREAM_NON_BLOCKING}}) {
    const CUstream stream = new_stream(flags);
    unsigned has = 4711;
    OK(CU(cuStreamGetFlags)(stream, &has));
    CHECK(has == flags);
    CUgreenCtx green = reinterpret_cast<CUgreenCtx>(1);
    OK(CU(cuStreamGetGreenCtx)(stream, &green));
    CHECK(green == nullptr);
    CUcontext found = nullptr;
    OK(CU(cuStreamGetCtx)(stream, &found));
    CHECK(found == part.handle());
    const std::set<unsigned> of_stream = places_of(mark, stream);
    CHECK(std::includes(places.begin(), places.end(), of_stream.begin(), of_stream.end()));
    OK(CU(cuStreamDestroy)(stream));
  }
}

TEST_CASE("contexts lie side by side as long as there is room, and a graph's kernels keep to theirs", "[forwarded]") {
  if (!makes_parts()) MPSSHIM_SKIP(kNative);
  OK(CU(cuInit)(0));
  const unsigned quarter = multiprocessors() / 4;
  const Part first(quarter);
  const LoadedImage image;
  const CUfunction mark = image.function("mark_multiprocessor");
  const std::set<unsigned> of_first = places_of(mark, nullptr);
  const Part second(quarter);
  const LoadedImage again;
  const CUfunction other_mark = again.function("mark_multiprocessor");
  const std::set<unsigned> of_second = places_of(other_mark, nullptr);
  for (const unsigned place : of_second) CHECK(of_first.count(place) == 0);

  const DeviceArray<unsigned> marks(512);
  const CUstream stream = new_stream();
  OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(launch(other_mark, stream, 4'096, 32, marks.address()));
  CUgraph graph = nullptr;
  OK(CU(cuStreamEndCapture)(stream, &graph));
  CUgraphExec executable = nullptr;
  OK(CU(cuGraphInstantiate)(&executable, graph, 0));
  OK(CU(cuGraphLaunch)(executable, stream));
  OK(CU(cuStreamSynchronize)(stream));
  for (const unsigned place : read(marks, 512)) CHECK(of_first.count(place) == 0);
  OK(CU(cuGraphExecDestroy)(executable));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("the NULL stream of a context with a part is ordered with its blocking streams", "[forwarded]") {
  if (!makes_parts()) MPSSHIM_SKIP(kNative);
  OK(CU(cuInit)(0));
  Gated scene;
  SharedWord done;
  const CUstream free = new_stream(CU_STREAM_NON_BLOCKING);
  CUstream first = nullptr;
  CUstream then = nullptr;
  SECTION("which come behind it") { then = scene.blocking; }
  SECTION("and it behind them") { first = scene.blocking; }
  OK(launch(scene.kernels.spin, first, 1, 1, scene.gate.address()));
  scene.gate.wait_for_spinning();
  OK(launch(scene.kernels.store, then, 1, 1, done.address(), 1u));
  OK(launch(scene.kernels.store, free, 1, 1, done.address() + 8, 1u));
  OK(CU(cuStreamSynchronize)(free));
  std::this_thread::sleep_for(20ms);
  CHECK(*done == 0);
  CHECK(CU(cuStreamQuery)(nullptr) == CUDA_ERROR_NOT_READY);
  CHECK(CU(cuStreamQuery)(scene.blocking) == CUDA_ERROR_NOT_READY);
  *scene.gate = 1;
  OK(CU(cuStreamSynchronize)(then));
  CHECK(*done == 1);
  OK(CU(cuStreamDestroy)(free));
}

TEST_CASE("who waits for the NULL stream of a context with a part waits for blocking streams", "[forwarded]") {
  if (!makes_parts()) MPSSHIM_SKIP(kNative);
  OK(CU(cuInit)(0));
  Gated scene;
  OK(launch(scene.kernels.spin, scene.blocking, 1, 1, scene.gate.address()));
  CHECK(CU(cuStreamQuery)(nullptr) == CUDA_ERROR_NOT_READY);
  std::thread release([&] {
    std::this_thread::sleep_for(20ms);
    *scene.gate = 1;
  });
  SECTION("cuStreamSynchronize") { OK(CU(cuStreamSynchronize)(nullptr)); }
  SECTION("cuCtxSynchronize") { OK(CU(cuCtxSynchronize)()); }
  CHECK(*scene.gate == 1);
  CHECK(CU(cuStreamQuery)(scene.blocking) == CUDA_SUCCESS);
  release.join();
}

TEST_CASE("while a blocking stream captures, the NULL stream of a context with a part is refused", "[forwarded]") {
  if (!makes_parts()) MPSSHIM_SKIP(kNative);
  OK(CU(cuInit)(0));
  const Part part(multiprocessors() / 2);
  const LoadedImage image;
  const CUfunction store = image.function("store");
  const DeviceArray<unsigned> word(1);
  const CUstream stream = new_stream(CU_STREAM_DEFAULT);
  OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK(launch(store, nullptr, 1, 1, word.address(), 1u) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CUgraph graph = nullptr;
  CHECK(CU(cuStreamEndCapture)(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(launch(store, nullptr, 1, 1, word.address(), 17u));
  CHECK(word[0] == 17);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("what a context with a part has ends with it", "[forwarded]") {
  if (!makes_parts()) MPSSHIM_SKIP(kNative);
  OK(CU(cuInit)(0));
  for (int turn = 0; turn < 40; ++turn) {  // more than there may be at once
    Part part(multiprocessors() / 2, CU_CTX_SCHED_BLOCKING_SYNC);
    unsigned flags = 0;
    OK(CU(cuCtxGetFlags)(&flags));
    CHECK((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC);
    CUdeviceptr memory = 0;
    OK(CU(cuMemAlloc)(&memory, 4'096));
    OK(CU(cuMemsetD32)(memory, 4711, 1'024));
    unsigned value = 0;
    OK(CU(cuMemcpyDtoH)(&value, memory + 4'092, 4));
    CHECK(value == 4711);
    const CUstream stream = new_stream();
    const CUcontext handle = part.handle();
    part.end();
    CUcontext current = nullptr;
    OK(CU(cuCtxGetCurrent)(&current));
    CHECK(current == nullptr);
    CHECK(CU(cuCtxSetCurrent)(handle) == CUDA_ERROR_INVALID_CONTEXT);
    const DeviceContext context;
    CHECK(CU(cuMemFree)(memory) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CU(cuStreamQuery)(stream) != CUDA_SUCCESS);
  }
}

TEST_CASE("affinities that ask for everything, and such that mean nothing", "[forwarded]") {
  if (!makes_parts()) MPSSHIM_SKIP(kNative);
  OK(CU(cuInit)(0));
  const unsigned all = multiprocessors();
  {
    const Part part(all);
    CHECK(affinity_of_current() == all);
  }
  {
    CUcontext context = nullptr;
    CUexecAffinityParam affinity = affinity_of(1);
    CUctxCreateParams params{};
    params.execAffinityParams = &affinity;
    params.numExecAffinityParams = 1;
    OK(call("cuCtxCreate_v4", &context, &params, 0u, CUdevice{0}));
    CHECK(affinity_of_current() < all);
    OK(CU(cuCtxDestroy)(context));
  }
  CUcontext context = nullptr;
  for (const unsigned impossible : {0U, all + 1, 10 * all}) {
    CUexecAffinityParam affinity = affinity_of(impossible);
    CHECK(call("cuCtxCreate_v3", &context, &affinity, 1, 0u, CUdevice{0}) == CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
  }
  CUexecAffinityParam unknown = affinity_of(1);
  unknown.type = beyond<CUexecAffinityType>(99);
  CHECK(call("cuCtxCreate_v3", &context, &unknown, 1, 0u, CUdevice{0}) == CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
  CUexecAffinityParam several[2] = {affinity_of(all), affinity_of(1)};
  OK(call("cuCtxCreate_v3", &context, several, 2, 0u, CUdevice{0}));
  CHECK(affinity_of_current() < all);
  OK(CU(cuCtxDestroy)(context));
  several[1] = affinity_of(0);
  CHECK(call("cuCtxCreate_v3", &context, several, 2, 0u, CUdevice{0}) == CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
  several[1] = affinity_of(1);
  CHECK(call("cuCtxCreate_v3", &context, static_cast<CUexecAffinityParam*>(nullptr), 1, 0u, CUdevice{0}) == CUDA_ERROR_INVALID_VALUE);
  OK(call("cuCtxCreate_v3", &context, several, -1, 0u, CUdevice{0}));
  CHECK(affinity_of_current() == all);
  OK(CU(cuCtxDestroy)(context));
  CHECK(call("cuCtxCreate_v3", &context, several, 1, 0u, CUdevice{99}) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(call("cuCtxCreate_v3", &context, several, 1, 0x8000u, CUdevice{0}) == CUDA_ERROR_INVALID_VALUE);
}
#endif
