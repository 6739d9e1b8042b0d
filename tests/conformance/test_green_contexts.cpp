// SPDX-License-Identifier: Apache-2.0
// Green contexts: shares of the multiprocessors, contexts made of them, their streams.
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "kernel_list.hpp"
#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;
using namespace std::chrono_literals;

#if CUDA_VERSION >= 13000
namespace {

constexpr unsigned kFine = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING;

CUdevResource device_resource() {
  CUdevResource resource{};
  OK(CU(cuDeviceGetDevResource)(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
  return resource;
}

struct Split {
  std::vector<CUdevResource> groups;
  CUdevResource remaining{};
};

Split split(const CUdevResource& input, unsigned groups, unsigned flags, unsigned min_count) {
  Split made;
  made.groups.resize(groups);
  OK(CU(cuDevSmResourceSplitByCount)(made.groups.data(), &groups, &input, &made.remaining, flags, min_count));
  made.groups.resize(groups);
  return made;
}

CUdevResourceDesc description(std::vector<CUdevResource> resources) {
  CUdevResourceDesc made = nullptr;
  OK(CU(cuDevResourceGenerateDesc)(&made, resources.data(), static_cast<unsigned>(resources.size())));
  return made;
}

// Of the smallest share that kernels may cluster in.
class Green {
 public:
  explicit Green(CUdevResourceDesc with = nullptr) {
    const CUdevResource whole = device_resource();
    if (with == nullptr) with = description({split(whole, 1, 0, whole.sm.minSmPartitionSize).groups.at(0)});
    OK(CU(cuGreenCtxCreate)(&handle_, with, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(CU(cuCtxFromGreenCtx)(&context_, handle_));
  }
  ~Green() { end(); }
  Green(const Green&) = delete;
  Green& operator=(const Green&) = delete;
  void end() {
    if (handle_ != nullptr) CU(cuGreenCtxDestroy)(handle_);
    handle_ = nullptr;
  }

  CUgreenCtx handle() const { return handle_; }
  CUcontext context() const { return context_; }
  CUstream stream() const {
    CUstream made = nullptr;
    OK(CU(cuGreenCtxStreamCreate)(&made, handle_, CU_STREAM_NON_BLOCKING, 0));
    return made;
  }
  CUgreenCtx of(CUstream stream) const {
    CUgreenCtx found = nullptr;
    OK(CU(cuStreamGetGreenCtx)(stream, &found));
    return found;
  }

 private:
  CUgreenCtx handle_ = nullptr;
  CUcontext context_ = nullptr;
};

// Current while it lasts.
class Current {
 public:
  explicit Current(CUcontext context) { OK(CU(cuCtxPushCurrent)(context)); }
  ~Current() {
    CUcontext popped = nullptr;
    CU(cuCtxPopCurrent)(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

unsigned multiprocessors() {
  int count = 0;
  OK(CU(cuDeviceGetAttribute)(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  return static_cast<unsigned>(count);
}

}  // namespace

TEST_CASE("the multiprocessors of a device as a resource", "[forwarded]") {
  const DeviceContext context;
  const CUdevResource whole = device_resource();
  CHECK(whole.type == CU_DEV_RESOURCE_TYPE_SM);
  CHECK(whole.sm.smCount == multiprocessors());
  CHECK(whole.sm.minSmPartitionSize >= 2);
  CHECK(whole.sm.smCoscheduledAlignment >= 2);
  CUdevResource of_context{};
  OK(CU(cuCtxGetDevResource)(context.handle(), &of_context, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(of_context.sm.smCount == whole.sm.smCount);
  CUdevResource other{};
  CHECK(CU(cuDeviceGetDevResource)(0, nullptr, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceGetDevResource)(0, &other, CU_DEV_RESOURCE_TYPE_INVALID) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CHECK(CU(cuDeviceGetDevResource)(4711, &other, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(CU(cuCtxGetDevResource)(context.handle(), nullptr, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("multiprocessors are split into equal groups and a rest", "[forwarded]") {
  const DeviceContext context;
  const CUdevResource whole = device_resource();
  const unsigned smallest = whole.sm.minSmPartitionSize;
  for (const unsigned flags : {0u, kFine}) {
    for (const unsigned wanted : {0u, 1u, smallest, smallest + 1}) {
      INFO("flags " << flags << ", " << wanted << " of " << whole.sm.smCount);
      unsigned most = 4711;
      OK(CU(cuDevSmResourceSplitByCount)(nullptr, &most, &whole, nullptr, flags, wanted));
      REQUIRE(most >= 1);
      const Split made = split(whole, most + 1, flags, wanted);
      CHECK(made.groups.size() == most);
      const unsigned size = made.groups.at(0).sm.smCount;
      CHECK(size >= wanted);
      CHECK(size % 2 == 0);
      if (flags == 0) CHECK(size % whole.sm.smCoscheduledAlignment == 0);
      for (const CUdevResource& group : made.groups) {
        CHECK(group.type == CU_DEV_RESOURCE_TYPE_SM);
        CHECK(group.sm.smCount == size);
      }
      CHECK(made.remaining.sm.smCount == whole.sm.smCount - most * size);
      CHECK(made.remaining.type == (made.remaining.sm.smCount != 0 ? CU_DEV_RESOURCE_TYPE_SM : CU_DEV_RESOURCE_TYPE_INVALID));
      const Split one = split(whole, 1, flags, wanted);
      CHECK(one.groups.at(0).sm.smCount == size);
      CHECK(one.remaining.sm.smCount == whole.sm.smCount - size);
    }
  }
  unsigned fine = 0;
  unsigned coarse = 0;
  OK(CU(cuDevSmResourceSplitByCount)(nullptr, &fine, &whole, nullptr, kFine, 1));
  OK(CU(cuDevSmResourceSplitByCount)(nullptr, &coarse, &whole, nullptr, 0, 1));
  CHECK(fine >= coarse);
}

TEST_CASE("resources and descriptors at fault", "[forwarded]") {
  const DeviceContext context;
  const CUdevResource whole = device_resource();
  const Split parts = split(whole, 2, kFine, 2);
  REQUIRE(parts.groups.size() == 2);
  const Split others = split(whole, 2, kFine, 2);
  CUdevResource out[2] = {};
  unsigned count = 1;
  CHECK(CU(cuDevSmResourceSplitByCount)(out, nullptr, &whole, nullptr, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDevSmResourceSplitByCount)(out, &count, nullptr, nullptr, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDevSmResourceSplitByCount)(out, &count, &whole, nullptr, 0, whole.sm.smCount + 1) == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CHECK(CU(cuDevSmResourceSplitByCount)(out, &count, &whole, nullptr, 1u << 20, 1) == CUDA_SUCCESS);  // no flag of its own
  const CUdevResource nothing{};
  CHECK(CU(cuDevSmResourceSplitByCount)(out, &count, &nothing, nullptr, 0, 1) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CHECK(CU(cuDevSmResourceSplitByCount)(out, &count, &parts.groups[0], nullptr, kFine, 2) == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);

  CUdevResourceDesc made = nullptr;
  CUdevResource one = parts.groups[0];
  CHECK(CU(cuDevResourceGenerateDesc)(nullptr, &one, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDevResourceGenerateDesc)(&made, nullptr, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDevResourceGenerateDesc)(&made, &one, 0) == CUDA_ERROR_INVALID_VALUE);
  CUdevResource none{};
  CHECK(CU(cuDevResourceGenerateDesc)(&made, &none, 1) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CUdevResource both[] = {parts.groups[0], parts.groups[1]};
  CHECK(CU(cuDevResourceGenerateDesc)(&made, both, 2) == CUDA_SUCCESS);
  CUdevResource mixed[] = {parts.groups[0], others.groups[1]};
  CHECK(CU(cuDevResourceGenerateDesc)(&made, mixed, 2) == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);

  CUgreenCtx green = nullptr;
  const CUdevResourceDesc good = description({one});
  CHECK(CU(cuGreenCtxCreate)(nullptr, good, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGreenCtxCreate)(&green, good, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGreenCtxCreate)(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGreenCtxCreate)(&green, good, 4711, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("resources that no call has filled are refused", "[forwarded]") {
  if (driver_kind() == DriverKind::real) MPSSHIM_SKIP("the real driver may believe what it finds");
  const DeviceContext context;
  CUdevResource forged = device_resource();
  std::memset(forged._internal_padding, 0x5a, sizeof forged._internal_padding);
  CUdevResourceDesc made = nullptr;
  CHECK(CU(cuDevResourceGenerateDesc)(&made, &forged, 1) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  unsigned count = 1;
  CUdevResource out{};
  CHECK(CU(cuDevSmResourceSplitByCount)(&out, &count, &forged, nullptr, 0, 1) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CUgreenCtx green = nullptr;
  int nobody = 0;
  CHECK(CU(cuGreenCtxCreate)(&green, reinterpret_cast<CUdevResourceDesc>(&nobody), 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("green contexts come and go, several of one descriptor", "[forwarded]") {
  const DeviceContext context;
  const CUdevResource whole = device_resource();
  const CUdevResource share = split(whole, 1, kFine, 4).groups.at(0);
  const CUdevResourceDesc descriptor = description({share});
  std::set<unsigned long long> ids;
  unsigned long long own = 0;
  OK(CU(cuCtxGetId)(context.handle(), &own));
  ids.insert(own);
  for (int turn = 0; turn < 3; ++turn) {
    const Green first(descriptor);
    const Green second(descriptor);
    for (const Green* green : {&first, &second}) {
      CUdevResource has{};
      OK(CU(cuGreenCtxGetDevResource)(green->handle(), &has, CU_DEV_RESOURCE_TYPE_SM));
      CHECK(has.sm.smCount == share.sm.smCount);
      OK(CU(cuCtxGetDevResource)(green->context(), &has, CU_DEV_RESOURCE_TYPE_SM));
      CHECK(has.sm.smCount == share.sm.smCount);
      unsigned long long id = 0;
      OK(CU(cuGreenCtxGetId)(green->handle(), &id));
      CHECK(ids.insert(id).second);
      CUcontext again = nullptr;
      OK(CU(cuCtxFromGreenCtx)(&again, green->handle()));
      CHECK(again == green->context());
      CHECK(again != context.handle());
    }
  }
  CUdevResource has{};
  CHECK(CU(cuGreenCtxGetDevResource)(Green(descriptor).handle(), nullptr, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGreenCtxGetDevResource)(Green(descriptor).handle(), &has, CU_DEV_RESOURCE_TYPE_INVALID) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
}

TEST_CASE("a share of a green context's multiprocessors", "[forwarded]") {
  const DeviceContext context;
  const CUdevResource whole = device_resource();
  const Green outer(description({split(whole, 1, 0, whole.sm.minSmPartitionSize).groups.at(0)}));
  CUdevResource has{};
  OK(CU(cuGreenCtxGetDevResource)(outer.handle(), &has, CU_DEV_RESOURCE_TYPE_SM));
  const Split halves = split(has, 2, kFine, has.sm.smCount / 2);
  REQUIRE(!halves.groups.empty());
  const Green inner(description({halves.groups.at(0)}));
  CUdevResource inner_has{};
  OK(CU(cuGreenCtxGetDevResource)(inner.handle(), &inner_has, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(inner_has.sm.smCount == halves.groups.at(0).sm.smCount);
  CHECK(inner_has.sm.smCount <= has.sm.smCount);
}

TEST_CASE("green contexts that are none", "[forwarded]") {
  if (!refuses_dead_handles()) MPSSHIM_SKIP("the real driver follows such a handle");
  const DeviceContext context;
  Green green;
  const CUgreenCtx dead = green.handle();
  const CUcontext dead_context = green.context();
  green.end();
  CUcontext found = nullptr;
  CUstream stream = nullptr;
  CUdevResource resource{};
  unsigned long long id = 0;
  for (const CUgreenCtx handle : {dead, static_cast<CUgreenCtx>(nullptr), reinterpret_cast<CUgreenCtx>(context.handle())}) {
    CHECK(CU(cuGreenCtxDestroy)(handle) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(CU(cuCtxFromGreenCtx)(&found, handle) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(CU(cuGreenCtxStreamCreate)(&stream, handle, CU_STREAM_NON_BLOCKING, 0) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(CU(cuGreenCtxGetDevResource)(handle, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(CU(cuGreenCtxGetId)(handle, &id) == CUDA_ERROR_INVALID_CONTEXT);
  }
  CHECK(CU(cuCtxSetCurrent)(dead_context) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(CU(cuCtxGetDevResource)(dead_context, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_CONTEXT);
}

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

TEST_CASE("a green context is current like another", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction add = image.function("add_to");
  DeviceArray<unsigned> sum(1);
  const Green green;
  CUgreenCtx of_null = green.handle();
  OK(CU(cuStreamGetGreenCtx)(nullptr, &of_null));
  CHECK(of_null == nullptr);
  {
    const Current current(green.context());
    CUcontext found = nullptr;
    OK(CU(cuCtxGetCurrent)(&found));
    CHECK(found == green.context());
    CUdevice device = -1;
    OK(CU(cuCtxGetDevice)(&device));
    CHECK(device == 0);
    unsigned flags = 4711;
    OK(CU(cuCtxGetFlags)(&flags));
    unsigned long long green_id = 0;
    unsigned long long current_id = 0;
    OK(CU(cuGreenCtxGetId)(nullptr, &green_id));
    OK(CU(cuCtxGetId)(green.context(), &current_id));
    CHECK(green_id == current_id);
    CHECK(green.of(nullptr) == green.handle());
    OK(CU(cuStreamGetCtx)(nullptr, &found));
    CHECK(found == green.context());

    const CUstream made = new_stream();
    CHECK(green.of(made) == green.handle());
    OK(CU(cuStreamGetCtx)(made, &found));
    CHECK(found == green.context());
    for (unsigned i = 0; i < 20; ++i) OK(launch(add, i < 10 ? nullptr : made, 1, 1, sum.address(), 1u));
    OK(CU(cuCtxSynchronize)());
    CHECK(sum[0] == 20);
    const LoadedImage again;  // modules and memory as ever
    DeviceArray<unsigned> word(1);
    OK(launch(again.function("store"), nullptr, 1, 1, word.address(), 4711u));
    CHECK(word[0] == 4711);
    OK(CU(cuStreamDestroy)(made));
    CHECK(CU(cuStreamGetGreenCtx)(CU_STREAM_PER_THREAD, &of_null) == CUDA_ERROR_INVALID_HANDLE);
  }
  CUcontext found = nullptr;
  OK(CU(cuCtxGetCurrent)(&found));
  CHECK(found == context.handle());
}

TEST_CASE("memory and modules made in a green context outlive it", "[forwarded]") {
  const DeviceContext context;
  CUdeviceptr memory = 0;
  CUmodule module = nullptr;
  const std::string content = read_image("kernels.fatbin");
  {
    const Green green;
    const Current current(green.context());
    OK(CU(cuMemAlloc)(&memory, 4));
    OK(CU(cuModuleLoadData)(&module, content.data()));
  }
  CUfunction store = nullptr;
  OK(CU(cuModuleGetFunction)(&store, module, "store"));
  OK(launch(store, nullptr, 1, 1, memory, 17u));
  unsigned value = 0;
  OK(CU(cuMemcpyDtoH)(&value, memory, 4));
  CHECK(value == 17);
  OK(CU(cuModuleUnload)(module));
  OK(CU(cuMemFree)(memory));
}

TEST_CASE("a green context's NULL stream is its own", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction spin = image.function("spin");
  const CUfunction store = image.function("store");
  DeviceArray<unsigned> word(1);
  SharedWord until;
  const Green green;
  CUstream blocking = nullptr;
  {
    const Current current(green.context());
    OK(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
    OK(launch(spin, nullptr, 1, 1, until.address()));
    OK(launch(store, blocking, 1, 1, word.address(), 1u));
    until.wait_for_spinning();
    CHECK(CU(cuStreamQuery)(blocking) == CUDA_ERROR_NOT_READY);  // behind the context's NULL stream
    CHECK(CU(cuStreamQuery)(nullptr) == CUDA_ERROR_NOT_READY);
  }
  OK(launch(store, nullptr, 1, 1, word.address(), 2u));
  OK(CU(cuStreamSynchronize)(nullptr));  // the primary context's is ordered with neither
  *until = 1;
  OK(CU(cuStreamSynchronize)(blocking));
  CHECK(word[0] == 1);
  OK(CU(cuStreamDestroy)(blocking));
}

TEST_CASE("the primary context waits for its green contexts, a green one for itself", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction spin = image.function("spin");
  const Green green;
  const Green other;
  SharedWord until;
  const CUstream stream = green.stream();
  OK(launch(spin, stream, 1, 1, until.address()));
  until.wait_for_spinning();
  {
    const Current current(other.context());
    OK(CU(cuCtxSynchronize)());  // returns while the other one's kernel runs
  }
  std::thread release([&] {
    std::this_thread::sleep_for(20ms);
    *until = 1;
  });
  OK(CU(cuCtxSynchronize)());
  CHECK(CU(cuStreamQuery)(stream) == CUDA_SUCCESS);
  release.join();
  OK(CU(cuStreamDestroy)(stream));
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

TEST_CASE("one client has sixteen green contexts at most", "[forwarded]") {
  if (driver_kind() != DriverKind::forwarded) MPSSHIM_SKIP("a limit of the broker");
  const DeviceContext context;
  const CUdevResourceDesc descriptor = description({split(device_resource(), 1, kFine, 2).groups.at(0)});
  std::vector<CUgreenCtx> made(16);
  for (CUgreenCtx& green : made) OK(CU(cuGreenCtxCreate)(&green, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  CUgreenCtx one_more = nullptr;
  CHECK(CU(cuGreenCtxCreate)(&one_more, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_OUT_OF_MEMORY);
  for (int turn = 0; turn < 40; ++turn) {
    OK(CU(cuGreenCtxDestroy)(made.back()));
    OK(CU(cuGreenCtxCreate)(&made.back(), descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  }
  for (const CUgreenCtx green : made) OK(CU(cuGreenCtxDestroy)(green));
}
#endif
