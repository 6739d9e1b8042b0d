// SPDX-License-Identifier: Apache-2.0
#include "tests/wire/support/fake_driver.hpp"

#include <atomic>
#include <cstring>

#include <sys/mman.h>

namespace mpsshim::test {

namespace {

FakeDriver* the_driver = nullptr;
thread_local std::vector<CUcontext> pushed;  // contexts, above the executor's own

struct FakeGraph {
  struct Node {
    bool is_kernel = true;
    CUDA_KERNEL_NODE_PARAMS kernel{};
    std::vector<std::byte> parameters;
    std::vector<CUstreamBatchMemOpParams> writes;
    CUcontext context = nullptr;
  };
  std::vector<std::unique_ptr<Node>> nodes;
};

std::vector<std::byte> gather(const FakeFunction& function, void* const* parameters) {
  std::vector<std::byte> bytes;
  const auto layout = function.layout();
  for (std::size_t i = 0; i < layout.size(); ++i) {
    bytes.resize(layout[i].first + layout[i].second);
    std::memcpy(bytes.data() + layout[i].first, parameters[i], layout[i].second);
  }
  return bytes;
}

constexpr char kWriter[] = "mpsshim_write_words";

CUstreamBatchMemOpParams write_operation(CUdeviceptr address, std::uint32_t value) {
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.address = address;
  operation.writeValue.value = value;
  return operation;
}

// What the executor's own writing kernel does with these parameters (broker/executor/word_writes.hpp).
std::vector<CUstreamBatchMemOpParams> writes_of_kernel(const std::vector<std::byte>& parameters) {
  struct {
    CUdeviceptr fence, progress;
    std::uint32_t fence_value, progress_value;
  } words;
  std::memcpy(&words, parameters.data(), sizeof words);
  std::vector<CUstreamBatchMemOpParams> writes;
  if (words.fence != 0) writes.push_back(write_operation(words.fence, words.fence_value));
  writes.push_back(write_operation(words.progress, words.progress_value));
  return writes;
}

void write_value(const CUstreamBatchMemOpParams& operation) {
  // Seen by other threads as a GPU's write is: after everything before it in its stream.
  auto& word = *reinterpret_cast<std::uint32_t*>(operation.writeValue.address);
  std::atomic_ref(word).store(static_cast<std::uint32_t>(operation.writeValue.value), std::memory_order_release);
}

FakeCall write_call(const CUstreamBatchMemOpParams& operation) {
  FakeCall call(FakeCall::write);
  call.destination = operation.writeValue.address;
  call.bytes_or_value = operation.writeValue.value;
  return call;
}

void assign(FakeGraph::Node& node, const CUDA_KERNEL_NODE_PARAMS& params) {
  node.kernel = params;
  const auto* function = reinterpret_cast<const FakeFunction*>(params.func);
  node.parameters = params.kernelParams != nullptr ? gather(*function, params.kernelParams) : std::vector<std::byte>{};
}

}  // namespace

std::vector<std::pair<std::size_t, std::size_t>> FakeFunction::layout() const {
  std::vector<std::pair<std::size_t, std::size_t>> layout;
  std::size_t end = 0;
  for (const std::size_t size : parameter_sizes) {
    const std::size_t offset = (end + size - 1) / size * size;
    layout.emplace_back(offset, size);
    end = offset + size;
  }
  return layout;
}

// The functions behind the table.
struct FakeEntry {
  template <typename Handle>
  static CUresult make(Handle* handle) {
    std::lock_guard lock(the_driver->mutex_);
    *handle = reinterpret_cast<Handle>(the_driver->next_handle_ += 16);
    return CUDA_SUCCESS;
  }

  static CUresult CUDAAPI set_current(CUcontext) { return CUDA_SUCCESS; }
  static CUresult CUDAAPI error_name(CUresult, const char** name) {
    *name = "a driver's error";
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI host_register(void*, std::size_t, unsigned) { return CUDA_SUCCESS; }
  static CUresult CUDAAPI host_unregister(void*) { return CUDA_SUCCESS; }
  static CUresult CUDAAPI host_pointer(CUdeviceptr* device, void* host, unsigned) {
    *device = reinterpret_cast<CUdeviceptr>(host);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI granularity(std::size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
    *bytes = 2u << 20;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI reserve(CUdeviceptr* address, std::size_t, std::size_t, CUdeviceptr wanted, unsigned long long) {
    *address = wanted;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI address_free(CUdeviceptr, std::size_t) { return CUDA_SUCCESS; }
  static CUresult CUDAAPI create(CUmemGenericAllocationHandle* handle, std::size_t, const CUmemAllocationProp*, unsigned long long) {
    *handle = 1;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI export_handle(void* fd, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long) {
    *static_cast<int*>(fd) = memfd_create("fake chunk", MFD_CLOEXEC);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI map(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long) { return CUDA_SUCCESS; }
  static CUresult CUDAAPI unmap(CUdeviceptr, std::size_t) { return CUDA_SUCCESS; }
  static CUresult CUDAAPI set_access(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) { return CUDA_SUCCESS; }
  static CUresult CUDAAPI release(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
  static CUresult CUDAAPI memory_info(std::size_t* free_bytes, std::size_t* total_bytes) {
    *free_bytes = 3u << 20;
    *total_bytes = 4u << 20;
    return CUDA_SUCCESS;
  }

  static CUresult CUDAAPI stream_create(CUstream* stream, unsigned, int) { return make(stream); }
  // A green context is its own handle as a context; streams count it.
  static CUresult CUDAAPI device_resource(CUdevice, CUdevResource* resource, CUdevResourceType type) {
    *resource = CUdevResource{};
    resource->type = type;
    resource->sm.smCount = 16;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI split(CUdevResource* result, unsigned* groups, const CUdevResource* input, CUdevResource* remaining, unsigned,
                                unsigned min_count) {
    for (unsigned i = 0; result != nullptr && i < *groups; ++i) {
      result[i] = *input;
      result[i].sm.smCount = min_count;
    }
    if (remaining != nullptr) *remaining = *input;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI describe(CUdevResourceDesc* descriptor, CUdevResource*, unsigned) { return make(descriptor); }
  static CUresult CUDAAPI green_create(CUgreenCtx* green, CUdevResourceDesc, CUdevice, unsigned) {
    ++the_driver->greens;
    return make(green);
  }
  static CUresult CUDAAPI green_destroy(CUgreenCtx) {
    --the_driver->greens;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI green_resource(CUgreenCtx, CUdevResource* resource, CUdevResourceType type) { return device_resource(0, resource, type); }
  static CUresult CUDAAPI green_context(CUcontext* context, CUgreenCtx green) {
    *context = reinterpret_cast<CUcontext>(green);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI green_stream(CUstream* stream, CUgreenCtx green, unsigned, int) {
    make(stream);
    std::lock_guard lock(the_driver->mutex_);
    the_driver->streams_[*stream].context = reinterpret_cast<CUcontext>(green);
    ++the_driver->green_streams;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI stream_destroy(CUstream stream) {
    std::lock_guard lock(the_driver->mutex_);
    if (the_driver->streams_[stream].context != nullptr) --the_driver->green_streams;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI push(CUcontext context) {
    pushed.push_back(context);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI pop(CUcontext* context) {
    *context = pushed.back();
    pushed.pop_back();
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI event_create(CUevent* event, unsigned) { return make(event); }
  static CUresult CUDAAPI module_load(CUmodule* module, const void*) { return make(module); }
  static CUresult CUDAAPI get_function(CUfunction* function, CUmodule, const char* name) {
    static std::map<std::string, std::unique_ptr<FakeFunction>> known;
    std::lock_guard lock(the_driver->mutex_);
    std::unique_ptr<FakeFunction>& entry = known[name];
    if (!entry)
      entry = std::make_unique<FakeFunction>(
          FakeFunction{name, name == std::string(kWriter) ? std::vector<std::size_t>{8, 8, 4, 4} : std::vector<std::size_t>{}});
    *function = reinterpret_cast<CUfunction>(entry.get());
    return CUDA_SUCCESS;
  }

  static CUresult CUDAAPI launch(CUfunction handle, unsigned grid_x, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream stream,
                                 void** parameters, void**) {
    if (the_driver->launch_result != CUDA_SUCCESS) return the_driver->launch_result;
    FakeCall call(FakeCall::launch);
    call.function = reinterpret_cast<const FakeFunction*>(handle);
    call.grid_x = grid_x;
    call.parameters = gather(*call.function, parameters);
    the_driver->submit(stream, std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI launch_ex(const CUlaunchConfig* config, CUfunction handle, void** parameters, void** extra) {
    return launch(handle, config->gridDimX, 1, 1, 1, 1, 1, 0, config->hStream, parameters, extra);
  }
  static CUresult CUDAAPI launch_cooperative(CUfunction handle, unsigned grid_x, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                             CUstream stream, void** parameters) {
    return launch(handle, grid_x, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  }
  static CUresult copy(std::uint64_t destination, std::uint64_t source, std::size_t bytes, CUstream stream) {
    FakeCall call(FakeCall::copy);
    call.destination = destination;
    call.source = source;
    call.bytes_or_value = bytes;
    the_driver->submit(stream, std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI copy_any(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) { return copy(to, from, bytes, stream); }
  static CUresult CUDAAPI copy_in(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
    return copy(to, reinterpret_cast<std::uint64_t>(from), bytes, stream);
  }
  static CUresult CUDAAPI copy_out(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    return copy(reinterpret_cast<std::uint64_t>(to), from, bytes, stream);
  }
  static CUresult fill(CUdeviceptr destination, std::uint64_t value, CUstream stream) {
    FakeCall call(FakeCall::fill);
    call.destination = destination;
    call.bytes_or_value = value;
    the_driver->submit(stream, std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI fill8(CUdeviceptr to, unsigned char value, std::size_t, CUstream stream) { return fill(to, value, stream); }
  static CUresult CUDAAPI fill16(CUdeviceptr to, unsigned short value, std::size_t, CUstream stream) { return fill(to, value, stream); }
  static CUresult CUDAAPI fill32(CUdeviceptr to, unsigned value, std::size_t, CUstream stream) { return fill(to, value, stream); }
  static CUresult CUDAAPI fill2d32(CUdeviceptr to, std::size_t, unsigned value, std::size_t, std::size_t, CUstream stream) {
    return fill(to, value, stream);
  }
  static CUresult CUDAAPI record(CUevent event, CUstream stream) {
    FakeCall call(FakeCall::record);
    call.event = event;
    the_driver->submit(stream, std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI wait(CUstream stream, CUevent event, unsigned) {
    FakeCall call(FakeCall::wait);
    call.event = event;
    the_driver->submit(stream, std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI write(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
    const CUstreamBatchMemOpParams operation = write_operation(address, value);
    the_driver->submit(stream, write_call(operation), [operation] { write_value(operation); });
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned) {
    if (!the_driver->has_batches) return CUDA_ERROR_NOT_SUPPORTED;
    const std::vector<CUstreamBatchMemOpParams> writes(operations, operations + count);
    std::vector<FakeCall> calls;
    for (const auto& operation : writes) calls.push_back(write_call(operation));
    the_driver->submit_all(stream, std::move(calls), [writes] {
      for (const auto& operation : writes) write_value(operation);
    });
    return CUDA_SUCCESS;
  }

  static CUresult CUDAAPI graph_create(CUgraph* graph, unsigned) {
    if (!the_driver->has_graphs) return CUDA_ERROR_NOT_SUPPORTED;
    *graph = reinterpret_cast<CUgraph>(new FakeGraph());
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI graph_destroy(CUgraph graph) {
    delete reinterpret_cast<FakeGraph*>(graph);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI add_kernel(CUgraphNode* node, CUgraph graph, const CUgraphNode*, std::size_t, const CUDA_KERNEL_NODE_PARAMS* params) {
    auto& nodes = reinterpret_cast<FakeGraph*>(graph)->nodes;
    nodes.push_back(std::make_unique<FakeGraph::Node>());
    assign(*nodes.back(), *params);
    nodes.back()->context = pushed.empty() ? nullptr : pushed.back();
    *node = reinterpret_cast<CUgraphNode>(nodes.back().get());
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI add_batch(CUgraphNode* node, CUgraph graph, const CUgraphNode*, std::size_t, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
    auto& nodes = reinterpret_cast<FakeGraph*>(graph)->nodes;
    nodes.push_back(std::make_unique<FakeGraph::Node>());
    nodes.back()->is_kernel = false;
    nodes.back()->writes.assign(params->paramArray, params->paramArray + params->count);
    *node = reinterpret_cast<CUgraphNode>(nodes.back().get());
    return CUDA_SUCCESS;
  }
  // An exec is its graph: the code under test has one of each other.
  static CUresult CUDAAPI instantiate(CUgraphExec* exec, CUgraph graph, unsigned long long) {
    ++the_driver->graphs_made;
    *exec = reinterpret_cast<CUgraphExec>(graph);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI exec_destroy(CUgraphExec) { return CUDA_SUCCESS; }
  static CUresult CUDAAPI set_kernel(CUgraphExec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
    if (!the_driver->has_graphs) return CUDA_ERROR_NOT_SUPPORTED;
    assign(*reinterpret_cast<FakeGraph::Node*>(node), *params);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI set_batch(CUgraphExec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
    reinterpret_cast<FakeGraph::Node*>(node)->writes.assign(params->paramArray, params->paramArray + params->count);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI graph_launch(CUgraphExec exec, CUstream stream) {
    const auto& nodes = reinterpret_cast<FakeGraph*>(exec)->nodes;
    std::vector<FakeCall> calls;
    std::vector<CUstreamBatchMemOpParams> writes;
    std::size_t kernels = 0;
    const auto is_writer = [](const FakeGraph::Node& node) {
      return node.is_kernel && reinterpret_cast<const FakeFunction*>(node.kernel.func)->name == kWriter;
    };
    for (const auto& node : nodes) {
      if (is_writer(*node))
        node->writes = writes_of_kernel(node->parameters);
      else if (node->is_kernel)
        ++kernels;
    }
    const unsigned number = ++the_driver->graph_launches_;
    for (const auto& node : nodes) {
      if (node->is_kernel && !is_writer(*node)) {
        FakeCall call(FakeCall::launch);
        call.function = reinterpret_cast<const FakeFunction*>(node->kernel.func);
        call.grid_x = node->kernel.gridDimX;
        call.parameters = node->parameters;
        call.graph_context = node->context;
        calls.push_back(std::move(call));
      }
      for (const auto& operation : node->writes) {
        calls.push_back(write_call(operation));
        calls.back().graph_context = node->context;
        writes.push_back(operation);
      }
    }
    for (FakeCall& call : calls) {
      call.chain = number;
      call.chain_length = kernels;
    }
    the_driver->submit_all(stream, std::move(calls), [writes] {
      for (const auto& operation : writes) write_value(operation);
    });
    return CUDA_SUCCESS;
  }
};

FakeDriver::FakeDriver() { the_driver = this; }
FakeDriver::~FakeDriver() { the_driver = nullptr; }

std::unique_ptr<broker::Driver> FakeDriver::driver() const {
  DriverTable table;
  table.cuCtxSetCurrent = FakeEntry::set_current;
  table.cuGetErrorName = FakeEntry::error_name;
  table.cuMemHostRegister_v2 = FakeEntry::host_register;
  table.cuMemHostUnregister = FakeEntry::host_unregister;
  table.cuMemHostGetDevicePointer_v2 = FakeEntry::host_pointer;
  table.cuMemGetAllocationGranularity = FakeEntry::granularity;
  table.cuMemAddressReserve = FakeEntry::reserve;
  table.cuMemAddressFree = FakeEntry::address_free;
  table.cuMemCreate = FakeEntry::create;
  table.cuMemExportToShareableHandle = FakeEntry::export_handle;
  table.cuMemMap = FakeEntry::map;
  table.cuMemUnmap = FakeEntry::unmap;
  table.cuMemSetAccess = FakeEntry::set_access;
  table.cuMemRelease = FakeEntry::release;
  table.cuMemGetInfo_v2 = FakeEntry::memory_info;
  table.cuStreamCreate = [](CUstream* stream, unsigned flags) { return FakeEntry::stream_create(stream, flags, 0); };
  table.cuStreamCreateWithPriority = FakeEntry::stream_create;
  table.cuStreamDestroy_v2 = FakeEntry::stream_destroy;
  table.cuDeviceGetDevResource = FakeEntry::device_resource;
  table.cuDevSmResourceSplitByCount = FakeEntry::split;
  table.cuDevResourceGenerateDesc = FakeEntry::describe;
  table.cuGreenCtxCreate = FakeEntry::green_create;
  table.cuGreenCtxDestroy = FakeEntry::green_destroy;
  table.cuGreenCtxGetDevResource = FakeEntry::green_resource;
  table.cuCtxFromGreenCtx = FakeEntry::green_context;
  table.cuGreenCtxStreamCreate = FakeEntry::green_stream;
  table.cuCtxPushCurrent_v2 = FakeEntry::push;
  table.cuCtxPopCurrent_v2 = FakeEntry::pop;
  table.cuEventCreate = FakeEntry::event_create;
  table.cuModuleLoadData = FakeEntry::module_load;
  table.cuModuleGetFunction = FakeEntry::get_function;
  table.cuLaunchKernel = FakeEntry::launch;
  table.cuLaunchKernelEx = FakeEntry::launch_ex;
  table.cuLaunchCooperativeKernel = FakeEntry::launch_cooperative;
  table.cuMemcpyAsync = FakeEntry::copy_any;
  table.cuMemcpyDtoDAsync_v2 = FakeEntry::copy_any;
  table.cuMemcpyHtoDAsync_v2 = FakeEntry::copy_in;
  table.cuMemcpyDtoHAsync_v2 = FakeEntry::copy_out;
  table.cuMemsetD8Async = FakeEntry::fill8;
  table.cuMemsetD16Async = FakeEntry::fill16;
  table.cuMemsetD32Async = FakeEntry::fill32;
  table.cuMemsetD2D32Async = FakeEntry::fill2d32;
  table.cuEventRecord = FakeEntry::record;
  table.cuStreamWaitEvent = FakeEntry::wait;
  table.cuStreamWriteValue32_v2 = FakeEntry::write;
  table.cuStreamBatchMemOp_v2 = FakeEntry::batch;
  table.cuGraphCreate = FakeEntry::graph_create;
  table.cuGraphDestroy = FakeEntry::graph_destroy;
  table.cuGraphAddKernelNode_v2 = FakeEntry::add_kernel;
  table.cuGraphAddBatchMemOpNode = FakeEntry::add_batch;
  table.cuGraphInstantiateWithFlags = FakeEntry::instantiate;
  table.cuGraphExecDestroy = FakeEntry::exec_destroy;
  table.cuGraphExecKernelNodeSetParams_v2 = FakeEntry::set_kernel;
  table.cuGraphExecBatchMemOpNodeSetParams = FakeEntry::set_batch;
  table.cuGraphLaunch = FakeEntry::graph_launch;
  return broker::Driver::from_table(table);
}

void FakeDriver::submit(CUstream stream, FakeCall call, std::function<void()> effect) {
  std::vector<FakeCall> calls;
  calls.push_back(std::move(call));
  submit_all(stream, std::move(calls), std::move(effect));
}

void FakeDriver::submit_all(CUstream stream, std::vector<FakeCall> calls, std::function<void()> effect) {
  std::lock_guard lock(mutex_);
  for (FakeCall& call : calls) {
    call.stream = stream;
    call.stream_context = streams_[stream].context;
    calls_.push_back(std::move(call));
  }
  if (!effect) effect = [] {};
  if (holding_) {
    streams_[stream].pending.push_back(std::move(effect));
  } else {
    effect();
  }
}

std::vector<FakeCall> FakeDriver::calls() const {
  std::lock_guard lock(mutex_);
  return calls_;
}

std::vector<FakeCall> FakeDriver::calls(FakeCall::Kind kind) const {
  std::vector<FakeCall> matching;
  for (FakeCall& call : calls()) {
    if (call.kind == kind) matching.push_back(std::move(call));
  }
  return matching;
}

void FakeDriver::forget_calls() {
  std::lock_guard lock(mutex_);
  calls_.clear();
}

void FakeDriver::hold_work() {
  std::lock_guard lock(mutex_);
  holding_ = true;
}

void FakeDriver::complete(std::size_t submissions) {
  std::lock_guard lock(mutex_);
  for (auto& [handle, stream] : streams_) {
    for (std::size_t i = 0; i < submissions && !stream.pending.empty(); ++i) {
      stream.pending.front()();
      stream.pending.pop_front();
    }
  }
}

void FakeDriver::resume_work() {
  {
    std::lock_guard lock(mutex_);
    holding_ = false;
  }
  complete();
}

}  // namespace mpsshim::test
