// SPDX-License-Identifier: Apache-2.0
#include "thread_operations.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace mpsshim::test {

namespace {

// A call of the driver, named for who reads about it.
#define DRIVER(worker, name, ...) ((worker).call = MPSSHIM_TEXT_OF(name), CU(name)(__VA_ARGS__))
// It succeeds, else this step ends.
#define STEP(worker, name, ...)                                      \
  do {                                                               \
    if (!(worker).expect(DRIVER(worker, name, __VA_ARGS__))) return; \
  } while (false)

constexpr size_t kWords = Worker::kBytes / sizeof(unsigned);

std::span<const unsigned> own_pages(const Worker& worker) { return {worker.pages, kWords}; }
std::span<const unsigned> own_pinned(const Worker& worker) { return {worker.pinned, kWords}; }

void count_call(void* counter) { ++*static_cast<std::atomic<unsigned>*>(counter); }

void synchronize_context(Worker& worker) {
  const CUresult refused = worker.captures_meet_waits ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
  worker.expect(DRIVER(worker, cuCtxSynchronize), {CUDA_SUCCESS, refused});
}

// --- streams ---

CUstream make_stream(Worker& worker) {
  CUstream made = nullptr;
  const unsigned flags = worker.below(2) == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
  worker.expect(DRIVER(worker, cuStreamCreate, &made, flags));
  return made;
}

void create_streams(Worker& worker) {
  const CUstream made = make_stream(worker);
  if (made == nullptr || !worker.add_one(made)) return;
  if (const auto old = worker.shared.passed_streams.put(made)) STEP(worker, cuStreamDestroy, *old);
}

void destroy_streams(Worker& worker) {
  auto taken = worker.shared.passed_streams.take();
  if (!taken) {
    taken = make_stream(worker);
    if (*taken == nullptr || !worker.add_one(*taken)) return;
  }
  STEP(worker, cuStreamDestroy, *taken);
}

void synchronize_streams(Worker& worker) {
  STEP(worker, cuStreamSynchronize, worker.any_stream());
  STEP(worker, cuStreamSynchronize, nullptr);
}

void query_streams(Worker& worker) {
  unsigned flags = 0;
  int priority = 0;
  CUcontext context = nullptr;
  worker.expect(DRIVER(worker, cuStreamQuery, worker.any_stream()), {CUDA_SUCCESS, CUDA_ERROR_NOT_READY});
  worker.expect(DRIVER(worker, cuStreamQuery, nullptr), {CUDA_SUCCESS, CUDA_ERROR_NOT_READY});
  STEP(worker, cuStreamGetFlags, worker.any_stream(), &flags);
  STEP(worker, cuStreamGetPriority, worker.any_stream(), &priority);
  STEP(worker, cuStreamGetCtx, worker.any_stream(), &context);
}

void wait_for_events(Worker& worker) { STEP(worker, cuStreamWaitEvent, worker.any_stream(), worker.any_event(), 0); }

void launch_kernels(Worker& worker) { worker.add_one(worker.any_stream()); }

void launch_in_null_stream(Worker& worker) { worker.add_one(nullptr); }

void call_host(Worker& worker) {
  SharedObjects& shared = worker.shared;
  if (worker.expect(DRIVER(worker, cuLaunchHostFunc, worker.any_stream(), count_call, &shared.host_calls))) ++shared.expected_host_calls;
}

// --- events ---

void record_events(Worker& worker) { STEP(worker, cuEventRecord, worker.any_event(), worker.any_stream()); }

void query_events(Worker& worker) {
  worker.expect(DRIVER(worker, cuEventQuery, worker.any_event()), {CUDA_SUCCESS, CUDA_ERROR_NOT_READY});
  float milliseconds = 0;
  worker.expect(DRIVER(worker, cuEventElapsedTime, &milliseconds, worker.shared.events[0], worker.shared.events[1]),
                {CUDA_SUCCESS, CUDA_ERROR_NOT_READY});
}

void synchronize_events(Worker& worker) { STEP(worker, cuEventSynchronize, worker.any_event()); }

void create_events(Worker& worker) {
  CUevent made = nullptr;
  STEP(worker, cuEventCreate, &made, worker.below(2) == 0 ? CU_EVENT_DISABLE_TIMING : CU_EVENT_DEFAULT);
  STEP(worker, cuEventRecord, made, worker.any_stream());
  if (const auto old = worker.shared.passed_events.put(made)) STEP(worker, cuEventDestroy, *old);
}

void destroy_events(Worker& worker) {
  auto taken = worker.shared.passed_events.take();
  if (!taken) {
    CUevent made = nullptr;
    STEP(worker, cuEventCreate, &made, CU_EVENT_DEFAULT);
    STEP(worker, cuEventRecord, made, worker.any_stream());
    taken = made;
  }
  STEP(worker, cuStreamWaitEvent, worker.any_stream(), *taken, 0);
  if (worker.below(2) == 0) STEP(worker, cuEventSynchronize, *taken);
  STEP(worker, cuEventDestroy, *taken);
}

// --- memory ---

void copy_memory(Worker& worker) {
  const unsigned value = worker.below(1u << 30);
  std::fill_n(worker.pages, kWords, value);
  STEP(worker, cuMemcpyHtoD, worker.device, worker.pages, Worker::kBytes);
  std::fill_n(worker.pages, kWords, 0);
  STEP(worker, cuMemcpyDtoH, worker.pages, worker.device, Worker::kBytes);
  worker.expect_words(own_pages(worker), value, "copied there and back");
  STEP(worker, cuMemcpyDtoH, worker.pages, worker.shared.pattern.address(), SharedObjects::kPatternWords * sizeof(unsigned));
  worker.expect_words({worker.pages, SharedObjects::kPatternWords}, SharedObjects::kPattern, "read by everybody");
}

void copy_in_streams(Worker& worker) {
  const CUstream stream = worker.any_stream();
  const unsigned value = worker.below(1u << 30);
  std::fill_n(worker.pinned, kWords, value);
  STEP(worker, cuMemcpyHtoDAsync, worker.device, worker.pinned, Worker::kBytes, stream);
  STEP(worker, cuMemcpyDtoDAsync, worker.device + Worker::kBytes, worker.device, Worker::kBytes, stream);
  STEP(worker, cuMemcpyDtoHAsync, worker.pinned, worker.device + Worker::kBytes, Worker::kBytes, stream);
  STEP(worker, cuStreamSynchronize, stream);
  worker.expect_words(own_pinned(worker), value, "copied in a stream");
}

void fill_memory(Worker& worker) {
  const CUstream stream = worker.any_stream();
  const unsigned value = worker.below(1u << 30);
  STEP(worker, cuMemsetD32Async, worker.device, value, kWords, stream);
  STEP(worker, cuMemcpyDtoHAsync, worker.pinned, worker.device, Worker::kBytes, stream);
  STEP(worker, cuStreamSynchronize, stream);
  worker.expect_words(own_pinned(worker), value, "filled in a stream");
}

void allocate_memory(Worker& worker) {
  CUdeviceptr made = 0;
  const unsigned value = worker.below(1u << 30);
  STEP(worker, cuMemAlloc, &made, worker.below(4) == 0 ? size_t{3} << 20 : Worker::kBytes);
  STEP(worker, cuMemsetD32, made, value, kWords);
  STEP(worker, cuMemcpyDtoH, worker.pages, made, Worker::kBytes);
  worker.expect_words(own_pages(worker), value, "allocated");
  STEP(worker, cuMemFree, made);
}

void allocate_in_streams(Worker& worker) {
  const CUstream stream = worker.any_stream();
  CUdeviceptr made = 0;
  const unsigned value = worker.below(1u << 30);
  STEP(worker, cuMemAllocAsync, &made, Worker::kBytes, stream);
  STEP(worker, cuMemsetD32Async, made, value, kWords, stream);
  STEP(worker, cuMemcpyDtoHAsync, worker.pinned, made, Worker::kBytes, stream);
  STEP(worker, cuMemFreeAsync, made, stream);
  STEP(worker, cuStreamSynchronize, stream);
  worker.expect_words(own_pinned(worker), value, "allocated in a stream");
}

void use_pools(Worker& worker) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool pool = nullptr;
  CUdeviceptr made = 0;
  STEP(worker, cuMemPoolCreate, &pool, &properties);
  STEP(worker, cuMemAllocFromPoolAsync, &made, Worker::kBytes, pool, worker.stream);
  STEP(worker, cuMemsetD32Async, made, 1, kWords, worker.stream);
  STEP(worker, cuMemFreeAsync, made, worker.stream);
  STEP(worker, cuMemPoolTrimTo, pool, 0);
  STEP(worker, cuMemPoolDestroy, pool);
}

void allocate_host_memory(Worker& worker) {
  void* made = nullptr;
  STEP(worker, cuMemHostAlloc, &made, Worker::kBytes, CU_MEMHOSTALLOC_DEVICEMAP);
  auto* const word = static_cast<volatile unsigned*>(made);
  *word = 0;
  const CUfunction store = worker.shared.store;
  CUdeviceptr address = reinterpret_cast<CUdeviceptr>(made);
  unsigned value = 7 + worker.below(1000);
  void* arguments[] = {&address, &value};
  STEP(worker, cuLaunchKernel, store, 1, 1, 1, 1, 1, 1, 0, worker.stream, arguments, nullptr);
  STEP(worker, cuStreamSynchronize, worker.stream);
  const unsigned stored = *word;
  worker.expect_words({&stored, 1}, value, "in host memory");
  STEP(worker, cuMemFreeHost, made);
}

void register_memory(Worker& worker) {
  const unsigned value = worker.below(1u << 30);
  STEP(worker, cuMemHostRegister, worker.pages, Worker::kBytes, 0);
  STEP(worker, cuMemsetD32Async, worker.device, value, kWords, worker.stream);
  STEP(worker, cuMemcpyDtoHAsync, worker.pages, worker.device, Worker::kBytes, worker.stream);
  STEP(worker, cuStreamSynchronize, worker.stream);
  worker.expect_words(own_pages(worker), value, "in registered memory");
  STEP(worker, cuMemHostUnregister, worker.pages);
}

void allocate_managed_memory(Worker& worker) {
  CUdeviceptr made = 0;
  STEP(worker, cuMemAllocManaged, &made, Worker::kBytes, CU_MEM_ATTACH_GLOBAL);
  STEP(worker, cuMemsetD32Async, made, 9, kWords, worker.stream);
  STEP(worker, cuStreamSynchronize, worker.stream);
  STEP(worker, cuMemcpyDtoH, worker.pages, made, Worker::kBytes);
  worker.expect_words(own_pages(worker), 9, "in managed memory");
  STEP(worker, cuMemFree, made);
}

void map_memory(Worker& worker) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle memory = 0;
  STEP(worker, cuMemAddressReserve, &range, kGranule, 0, 0, 0);
  STEP(worker, cuMemCreate, &memory, kGranule, &properties, 0);
  STEP(worker, cuMemMap, range, kGranule, 0, memory, 0);
  STEP(worker, cuMemSetAccess, range, kGranule, &access, 1);
  STEP(worker, cuMemsetD32, range, 0xbeef, kWords);
  STEP(worker, cuMemcpyDtoH, worker.pages, range, Worker::kBytes);
  worker.expect_words(own_pages(worker), 0xbeef, "mapped");
  STEP(worker, cuMemUnmap, range, kGranule);
  STEP(worker, cuMemRelease, memory);
  STEP(worker, cuMemAddressFree, range, kGranule);
}

void use_arrays(Worker& worker) {
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = 64;
  shape.Height = 64;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  shape.NumChannels = 1;
  CUarray made = nullptr;
  STEP(worker, cuArrayCreate, &made, &shape);
  const unsigned value = worker.below(1u << 30);
  std::fill_n(worker.pages, kWords, value);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = worker.pages;
  copy.srcPitch = copy.WidthInBytes = 64 * sizeof(unsigned);
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = made;
  copy.Height = 64;
  STEP(worker, cuMemcpy2D, &copy);
  std::fill_n(worker.pages, kWords, 0);
  CUDA_MEMCPY2D back{};
  back.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  back.srcArray = made;
  back.dstMemoryType = CU_MEMORYTYPE_HOST;
  back.dstHost = worker.pages;
  back.dstPitch = back.WidthInBytes = copy.WidthInBytes;
  back.Height = copy.Height;
  STEP(worker, cuMemcpy2D, &back);
  worker.expect_words(own_pages(worker), value, "in an array");
  STEP(worker, cuArrayDestroy, made);
}

void ask_of_addresses(Worker& worker) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  unsigned type = 0;
  CUcontext context = nullptr;
  const CUdeviceptr address = worker.shared.pattern.address() + 64;
  STEP(worker, cuMemGetAddressRange, &base, &bytes, address);
  STEP(worker, cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  STEP(worker, cuPointerGetAttribute, &context, CU_POINTER_ATTRIBUTE_CONTEXT, reinterpret_cast<CUdeviceptr>(worker.pinned));
  const bool is_right = base == address - 64 && type == CU_MEMORYTYPE_DEVICE && context == worker.shared.current();
  if (!is_right) worker.expect(CUDA_ERROR_UNKNOWN);
}

void ask_of_free_memory(Worker& worker) {
  size_t free_bytes = 0;
  size_t total = 0;
  STEP(worker, cuMemGetInfo, &free_bytes, &total);
  if (free_bytes > total) worker.expect(CUDA_ERROR_UNKNOWN);
}

// --- modules ---

void load_modules(Worker& worker) {
  CUmodule made = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr variable = 0;
  size_t bytes = 0;
  STEP(worker, cuModuleLoadData, &made, worker.shared.image.content().data());
  STEP(worker, cuModuleGetFunction, &function, made, "add_to");
  STEP(worker, cuModuleGetGlobal, &variable, &bytes, made, "counter");
  int counter = 0;
  STEP(worker, cuMemcpyDtoH, &counter, variable, sizeof counter);
  if (counter != 5) worker.expect(CUDA_ERROR_UNKNOWN);
  CUdeviceptr sum = worker.shared.sum.address();
  unsigned one = 1;
  void* arguments[] = {&sum, &one};
  STEP(worker, cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, worker.stream, arguments, nullptr);
  ++worker.shared.expected_sum;
  STEP(worker, cuStreamSynchronize, worker.stream);
  STEP(worker, cuModuleUnload, made);
}

void load_libraries(Worker& worker) {
  CUlibrary made = nullptr;
  CUkernel kernel = nullptr;
  STEP(worker, cuLibraryLoadData, &made, worker.shared.image.content().data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  STEP(worker, cuLibraryGetKernel, &kernel, made, "add_to");
  CUdeviceptr sum = worker.shared.sum.address();
  unsigned one = 1;
  void* arguments[] = {&sum, &one};
  STEP(worker, cuLaunchKernel, reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, worker.stream, arguments, nullptr);
  ++worker.shared.expected_sum;
  STEP(worker, cuStreamSynchronize, worker.stream);
  STEP(worker, cuLibraryUnload, made);
}

void look_functions_up(Worker& worker) {
  static constexpr const char* kNames[] = {"vector_add", "store", "add_to", "append", "read_variables", "bounded", "shared_memory"};
  CUfunction function = nullptr;
  STEP(worker, cuModuleGetFunction, &function, worker.shared.image.handle(), kNames[worker.below(std::size(kNames))]);
  int value = 0;
  STEP(worker, cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
  STEP(worker, cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, static_cast<int>(worker.below(100)));
}

void ask_of_occupancy(Worker& worker) {
  int blocks = 0;
  STEP(worker, cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, worker.shared.add_to, 32 + static_cast<int>(worker.below(900)),
       worker.below(4096));
}

// --- graphs ---

// A capture that another thread has spoilt by waiting for all of the context, as CUDA says.
bool expect_captured(Worker& worker, CUresult status) {
  if (!worker.captures_meet_waits) return worker.expect(status);
  worker.expect(status, {CUDA_SUCCESS, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED});
  return status == CUDA_SUCCESS;
}

bool capture(Worker& worker, CUgraph& graph) {
  if (!worker.expect(DRIVER(worker, cuStreamBeginCapture, worker.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))) return false;
  CUdeviceptr sum = worker.shared.sum.address();
  unsigned one = 1;
  void* arguments[] = {&sum, &one};
  const CUfunction add_to = worker.shared.add_to;
  expect_captured(worker, DRIVER(worker, cuMemsetD32Async, worker.device, 3, kWords, worker.stream));
  expect_captured(worker, DRIVER(worker, cuLaunchKernel, add_to, 1, 1, 1, 1, 1, 1, 0, worker.stream, arguments, nullptr));
  return expect_captured(worker, DRIVER(worker, cuStreamEndCapture, worker.stream, &graph));
}

void capture_graphs(Worker& worker) {
  CUgraph graph = nullptr;
  CUgraph same = nullptr;
  CUgraphExec exec = nullptr;
  if (!capture(worker, graph)) return;
  STEP(worker, cuGraphInstantiateWithFlags, &exec, graph, 0);
  STEP(worker, cuGraphLaunch, exec, worker.stream);
  ++worker.shared.expected_sum;
  if (capture(worker, same)) {
    CUgraphExecUpdateResultInfo info{};
    STEP(worker, cuGraphExecUpdate, exec, same, &info);
    STEP(worker, cuGraphLaunch, exec, worker.stream);
    ++worker.shared.expected_sum;
    STEP(worker, cuGraphDestroy, same);
  }
  STEP(worker, cuGraphExecDestroy, exec);
  STEP(worker, cuGraphDestroy, graph);
  STEP(worker, cuStreamSynchronize, worker.stream);
}

void build_graphs(Worker& worker) {
  SharedObjects& shared = worker.shared;
  CUgraph graph = nullptr;
  CUgraphNode kernel_node = nullptr;
  CUgraphExec exec = nullptr;
  STEP(worker, cuGraphCreate, &graph, 0);
  CUdeviceptr sum = shared.sum.address();
  unsigned one = 1;
  void* arguments[] = {&sum, &one};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = shared.add_to;
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.kernelParams = arguments;
  STEP(worker, cuGraphAddKernelNode, &kernel_node, graph, nullptr, 0, &kernel);
  CUDA_HOST_NODE_PARAMS host{count_call, &shared.host_calls};
  CUgraphNode host_node = nullptr;
  STEP(worker, cuGraphAddHostNode, &host_node, graph, &kernel_node, 1, &host);
  STEP(worker, cuGraphInstantiateWithFlags, &exec, graph, 0);
  STEP(worker, cuGraphDestroy, graph);
  STEP(worker, cuGraphLaunch, exec, worker.any_stream());
  ++shared.expected_sum;
  ++shared.expected_host_calls;
  STEP(worker, cuGraphExecDestroy, exec);  // while it runs
}

void launch_shared_graph(Worker& worker) {
  SharedObjects& shared = worker.shared;
  const std::lock_guard lock(shared.graph_mutex);
  STEP(worker, cuGraphLaunch, shared.exec, worker.any_stream());
  ++shared.expected_sum;
}

// --- contexts ---

void retain_primary_context(Worker& worker) {
  CUcontext context = nullptr;
  STEP(worker, cuDevicePrimaryCtxRetain, &context, 0);
  if (context != worker.shared.current()) worker.expect(CUDA_ERROR_UNKNOWN);
  unsigned flags = 0;
  int is_active = 0;
  STEP(worker, cuDevicePrimaryCtxGetState, 0, &flags, &is_active);
  if (is_active != 1) worker.expect(CUDA_ERROR_UNKNOWN);
  STEP(worker, cuDevicePrimaryCtxRelease, 0);
}

void change_current_context(Worker& worker) {
  CUcontext context = nullptr;
  STEP(worker, cuCtxPushCurrent, worker.shared.current());
  STEP(worker, cuCtxPopCurrent, &context);
  STEP(worker, cuCtxSetCurrent, nullptr);
  STEP(worker, cuCtxSetCurrent, context);
  STEP(worker, cuCtxGetCurrent, &context);
  if (context != worker.shared.current()) worker.expect(CUDA_ERROR_UNKNOWN);
}

// Another context, which ends with all that was made in it.
void use_another_context(Worker& worker) {
  CUcontext made = nullptr;
  worker.call = "cuCtxCreate_v2";
  if (!worker.expect(call("cuCtxCreate_v2", &made, 0u, CUdevice{0}))) return;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
  void* host = nullptr;
  STEP(worker, cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  STEP(worker, cuEventCreate, &event, CU_EVENT_DEFAULT);
  STEP(worker, cuMemAlloc, &memory, Worker::kBytes);
  STEP(worker, cuMemHostAlloc, &host, Worker::kBytes, 0);
  STEP(worker, cuMemsetD32Async, memory, 1, kWords, stream);
  STEP(worker, cuEventRecord, event, stream);
  STEP(worker, cuCtxDestroy, made);
  STEP(worker, cuCtxSetCurrent, worker.shared.current());
}

// The stream that is the thread's own, made at its first use.
void use_own_stream(Worker& worker) {
  if (!worker.add_one(CU_STREAM_PER_THREAD)) return;
  STEP(worker, cuStreamSynchronize, CU_STREAM_PER_THREAD);
}

constexpr Operation kOperations[] = {
    {"synchronize the context", synchronize_context, true, true},
    {"create streams", create_streams},
    {"destroy streams", destroy_streams},
    {"synchronize streams", synchronize_streams},
    {"query streams", query_streams},
    {"wait for events in streams", wait_for_events},
    {"launch kernels", launch_kernels},
    {"launch in the NULL stream", launch_in_null_stream},
    {"call the host", call_host},
    {"record events", record_events},
    {"query events", query_events},
    {"synchronize events", synchronize_events},
    {"create events", create_events},
    {"destroy events", destroy_events},
    {"copy", copy_memory},
    {"copy in streams", copy_in_streams},
    {"fill in streams", fill_memory},
    {"allocate memory", allocate_memory},
    {"allocate in streams", allocate_in_streams, false},
    {"use pools", use_pools, false},
    {"allocate host memory", allocate_host_memory},
    {"register memory", register_memory},
    {"allocate managed memory", allocate_managed_memory},
    {"map memory", map_memory},
    {"use arrays", use_arrays},
    {"ask of addresses", ask_of_addresses},
    {"ask of free memory", ask_of_free_memory},
    {"load modules", load_modules},
    {"load libraries", load_libraries},
    {"look functions up", look_functions_up},
    {"ask of occupancy", ask_of_occupancy},
    {"capture graphs", capture_graphs, false, false, true},
    {"build graphs", build_graphs},
    {"launch a shared graph", launch_shared_graph},
    {"retain the primary context", retain_primary_context},
    {"change the current context", change_current_context},
    {"use another context", use_another_context, false},
    {"use the thread's own stream", use_own_stream},
};

}  // namespace

std::span<const Operation> thread_operations() { return kOperations; }

SharedObjects::SharedObjects() {
  OK(CU(cuMemsetD32)(pattern.address(), kPattern, kPatternWords));
  for (size_t i = 0; i < streams.size(); ++i) streams[i] = new_stream(i + 1 == streams.size() ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
  for (CUevent& event : events) {
    event = new_event();
    OK(CU(cuEventRecord)(event, streams[0]));
  }
  OK(CU(cuGraphCreate)(&graph, 0));
  CUdeviceptr address = sum.address();
  unsigned one = 1;
  void* arguments[] = {&address, &one};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = add_to;
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.kernelParams = arguments;
  CUgraphNode node = nullptr;
  OK(CU(cuGraphAddKernelNode)(&node, graph, nullptr, 0, &kernel));
  OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
  OK(CU(cuCtxSynchronize)());
}

SharedObjects::~SharedObjects() {
  CU(cuGraphExecDestroy)(exec);
  CU(cuGraphDestroy)(graph);
  for (const CUevent event : events) CU(cuEventDestroy)(event);
  for (const CUstream stream : streams) CU(cuStreamDestroy)(stream);
}

void SharedObjects::settle(Findings& findings) {
  const auto expect = [&](CUresult status, const char* call) {
    if (status != CUDA_SUCCESS) findings.add(std::string(call) + " at the end: " + std::to_string(status));
  };
  while (const auto stream = passed_streams.take()) expect(CU(cuStreamDestroy)(*stream), "cuStreamDestroy");
  while (const auto event = passed_events.take()) expect(CU(cuEventDestroy)(*event), "cuEventDestroy");
  expect(CU(cuCtxSynchronize)(), "cuCtxSynchronize");
  unsigned added = 0;
  expect(CU(cuMemcpyDtoH)(&added, sum.address(), sizeof added), "cuMemcpyDtoH");
  if (added != expected_sum) findings.add("kernels ran " + std::to_string(added) + " times, asked for " + std::to_string(expected_sum));
  if (host_calls != expected_host_calls) {
    findings.add("host functions ran " + std::to_string(host_calls) + " times, asked for " + std::to_string(expected_host_calls));
  }
  expected_sum = added;
  expected_host_calls = host_calls.load();
}

Worker::Worker(SharedObjects& all, Findings& found, unsigned seed) : shared(all), findings_(found), random_(seed) {
  stream = new_stream();
  OK(CU(cuMemAlloc)(&device, 2 * kBytes));
  void* host = nullptr;
  OK(CU(cuMemHostAlloc)(&host, kBytes, 0));
  pinned = static_cast<unsigned*>(host);
  pages = static_cast<unsigned*>(std::aligned_alloc(4096, kBytes));
  REQUIRE(pages != nullptr);
  std::memset(pages, 0, kBytes);
}

Worker::~Worker() {
  std::free(pages);
  CU(cuMemFreeHost)(pinned);
  CU(cuMemFree)(device);
  CU(cuStreamDestroy)(stream);
}

void Worker::wait() {
  for (const CUstream each : shared.streams) STEP(*this, cuStreamSynchronize, each);
  STEP(*this, cuStreamSynchronize, nullptr);
}

bool Worker::expect(CUresult status, std::initializer_list<CUresult> expected) {
  if (std::find(expected.begin(), expected.end(), status) != expected.end()) return true;
  findings_.add(std::string(operation) + ": " + call.load() + " returned " + std::to_string(status));
  return false;
}

void Worker::expect_words(std::span<const unsigned> words, unsigned value, const char* where) {
  const auto wrong = std::find_if(words.begin(), words.end(), [&](unsigned word) { return word != value; });
  if (wrong != words.end()) findings_.add(std::string(operation) + ": other words than were written, " + where);
}

bool Worker::add_one(CUstream to) {
  CUdeviceptr sum = shared.sum.address();
  unsigned one = 1;
  void* arguments[] = {&sum, &one};
  const CUfunction add_to = shared.add_to;
  if (!expect(DRIVER(*this, cuLaunchKernel, add_to, 1, 1, 1, 1, 1, 1, 0, to, arguments, nullptr))) return false;
  ++shared.expected_sum;
  return true;
}

}  // namespace mpsshim::test
