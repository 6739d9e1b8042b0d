// SPDX-License-Identifier: Apache-2.0
// The CPU driver with one fault: a library for each (MPSSHIM_FAULT), to be named to mpsbroker as --driver. The executor looks symbols up
// in this library and then in what it is linked with, which is the CPU driver: so it defines what it changes and nothing else.
// The first five and NARROW_NODES prove that random_order notices when operations run in another order, or otherwise, than the program gave. The
// broker has to notice the others, or to do nothing that brings the fault about (GROWN_NODES).
#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <cerrno>
#include <csignal>

#include <dlfcn.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SWAPPED_NODES 1    // launches in a chain change places, two by two
#define STALE_NODES 2      // now and then a node keeps the launch it had
#define DROPPED_WAITS 3    // streams do not wait for events
#define EARLY_FENCES 4     // fences are written when they are asked for, not when the stream comes to them
#define ASTRAY_LAUNCHES 5  // launches outside chains go to a stream of their own
#define FAULTING_FILLS 7   // a fill with one value faults on the device, by itself and in graphs (test_client: fill, fill_graph)
#define WANTED_RIGHTS 8    // a fill with one value tries what an executor has no rights for (test_client: fill), and is refused if it had none
// A fill with one value never returns, with another it crashes, with a third it is refused (test_client: fill); compilations.
#define LOST_CALLS 6
// A node of an executable graph that is set to a kernel with more bytes of parameters than it has had so far runs that with those it had
// (docs/experiments/2026-11-26-parameters-of-other-nodes.md). Nodes of the executor's are made with the most that there may be.
#define GROWN_NODES 9
#define NARROW_NODES 10  // the same, where nodes have room for few bytes whatever they are made with: so the executor's grow as well

namespace {

[[maybe_unused]] constexpr unsigned kNowAndThen = 8;

// random_order's launches with arguments have blocks of 32 threads or more; one thread is what the executor writes fences with.
[[maybe_unused]] bool is_writer(const CUDA_KERNEL_NODE_PARAMS& params) { return params.blockDimX == 1 && params.kernelParams != nullptr; }

// Of the CPU driver.
template <typename Function>
[[maybe_unused]] Function* original(const char* name) {
  static void* const library = dlopen(MPSSHIM_FAULTY_DRIVER_OF, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

#define FAULTY extern "C" __attribute__((visibility("default")))
#define ORIGINAL(name) original<decltype(name)>(#name)

#if MPSSHIM_FAULT == SWAPPED_NODES

namespace {
std::mutex mutex;
std::map<CUgraph, CUgraphNode> unpaired;
std::map<CUgraphNode, CUgraphNode> partner;
}  // namespace

FAULTY CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                        const CUDA_KERNEL_NODE_PARAMS* params) {
  const CUresult result = ORIGINAL(cuGraphAddKernelNode_v2)(node, graph, dependencies, count, params);
  const std::lock_guard lock(mutex);
  CUgraphNode& other = unpaired[graph];
  if (other != nullptr) {
    partner[other] = *node;
    partner[*node] = other;
    other = nullptr;
  } else {
    other = *node;
    partner.erase(*node);  // a handle used again
  }
  return result;
}

FAULTY CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  const std::lock_guard lock(mutex);
  const auto found = partner.find(node);
  return ORIGINAL(cuGraphExecKernelNodeSetParams_v2)(exec, found != partner.end() ? found->second : node, params);
}

#elif MPSSHIM_FAULT == STALE_NODES

FAULTY CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  static thread_local unsigned calls = 0;
  if (!is_writer(*params) && ++calls % kNowAndThen == 0) return CUDA_SUCCESS;
  return ORIGINAL(cuGraphExecKernelNodeSetParams_v2)(exec, node, params);
}

#elif MPSSHIM_FAULT == DROPPED_WAITS

FAULTY CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned) { return CUDA_SUCCESS; }

#elif MPSSHIM_FAULT == EARLY_FENCES

// The executor writes fences by a kernel (fence, progress, fence value, progress value) or, the fence first, by memory operations. The CPU
// driver's addresses of registered memory are the host's.
FAULTY CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  if (is_writer(*params)) {
    auto* const fence = *static_cast<volatile std::uint32_t**>(params->kernelParams[0]);
    if (fence != nullptr) *fence = *static_cast<const std::uint32_t*>(params->kernelParams[2]);
  }
  return ORIGINAL(cuGraphExecKernelNodeSetParams_v2)(exec, node, params);
}

FAULTY CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams* params, unsigned flags) {
  if (count == 2) *reinterpret_cast<volatile std::uint32_t*>(params[0].writeValue.address) = params[0].writeValue.value;
  return ORIGINAL(cuStreamBatchMemOp_v2)(stream, count, params, flags);
}

#elif MPSSHIM_FAULT == ASTRAY_LAUNCHES

namespace {
CUstream apart() {
  static thread_local CUstream stream = nullptr;
  if (stream == nullptr) ORIGINAL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
  return stream;
}
}  // namespace

FAULTY CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                               unsigned block_z, unsigned shared_bytes, CUstream, void** parameters, void** extra) {
  return ORIGINAL(cuLaunchKernel)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, apart(), parameters, extra);
}

FAULTY CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                                          unsigned block_z, unsigned shared_bytes, CUstream, void** parameters) {
  return ORIGINAL(cuLaunchCooperativeKernel)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, apart(), parameters);
}

FAULTY CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  CUlaunchConfig astray = *config;
  astray.hStream = apart();
  return ORIGINAL(cuLaunchKernelEx)(&astray, function, parameters, extra);
}

#elif MPSSHIM_FAULT == LOST_CALLS

// Compilations crash as long as the file is there that MPSSHIM_TEST_CRASH names; the first one takes it away, unless it is a folder.
FAULTY CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size, const char* name, unsigned count,
                                 CUjit_option* options, void** values) {
  const char* const file = std::getenv("MPSSHIM_TEST_CRASH");
  if (file != nullptr && access(file, F_OK) == 0) {
    unlink(file);
    raise(SIGSEGV);
  }
  return ORIGINAL(cuLinkAddData_v2)(state, type, data, size, name, count, options, values);
}

// There is no room for a context as long as the file is there that MPSSHIM_TEST_FULL names.
FAULTY CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const char* const file = std::getenv("MPSSHIM_TEST_FULL");
  if (file != nullptr && access(file, F_OK) == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  return ORIGINAL(cuDevicePrimaryCtxRetain)(context, device);
}

FAULTY CUresult cuMemsetD32Async(CUdeviceptr destination, unsigned value, size_t count, CUstream stream) {
  if (value == 0xdead'0001) {
    for (;;) pause();
  }
  if (value == 0xdead'0002) raise(SIGSEGV);
  if (value == 0xdead'0003) return CUDA_ERROR_OUT_OF_MEMORY;
  return ORIGINAL(cuMemsetD32Async)(destination, value, count, stream);
}

#elif MPSSHIM_FAULT == FAULTING_FILLS

namespace {

constexpr unsigned kFaultingValue = 0xdead'0004;

CUfunction faulting_kernel() {
  constexpr const char* kImage =
      ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry fault() {\n  .reg .b64 %a;\n  mov.u64 %a, 16;\n  st.global.u32 [%a], 1;\n"
      "  ret;\n}\n";
  static const CUfunction kernel = [] {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    if (ORIGINAL(cuModuleLoadData)(&module, kImage) == CUDA_SUCCESS) ORIGINAL(cuModuleGetFunction)(&function, module, "fault");
    return function;
  }();
  return kernel;
}

}  // namespace

// Loaded when the executor starts: later it would wait for every kernel that runs.
FAULTY CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  (void)faulting_kernel();
  return ORIGINAL(cuStreamCreateWithPriority)(stream, flags, priority);
}

FAULTY CUresult cuMemsetD32Async(CUdeviceptr destination, unsigned value, size_t count, CUstream stream) {
  if (value != kFaultingValue) return ORIGINAL(cuMemsetD32Async)(destination, value, count, stream);
  return ORIGINAL(cuLaunchKernel)(faulting_kernel(), 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
}

FAULTY CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                     const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
  if (params->value != kFaultingValue) return ORIGINAL(cuGraphAddMemsetNode)(node, graph, dependencies, count, params, context);
  CUDA_KERNEL_NODE_PARAMS faulting{};
  faulting.func = faulting_kernel();
  faulting.gridDimX = faulting.gridDimY = faulting.gridDimZ = faulting.blockDimX = faulting.blockDimY = faulting.blockDimZ = 1;
  return ORIGINAL(cuGraphAddKernelNode_v2)(node, graph, dependencies, count, &faulting);
}

#elif MPSSHIM_FAULT == WANTED_RIGHTS

namespace {

constexpr unsigned kTryingValue = 0xdead'0005;

bool is_refused(long result) { return result < 0 && errno == EPERM; }

// Each would succeed, or fail otherwise, in a process that nothing is refused to.
bool had_no_rights() {
  char word[8] = {};
  iovec own{word, sizeof word};
  const pid_t child = fork();
  if (child == 0) _exit(0);
  const bool forks = child > 0;
  const bool executes = !is_refused(syscall(SYS_execve, "/nonexistent", nullptr, nullptr));
  const bool signals = !is_refused(kill(getppid(), 0));
  const bool connects = !is_refused(socket(AF_INET, SOCK_STREAM, 0));
  const bool traces = !is_refused(ptrace(PTRACE_PEEKDATA, getppid(), nullptr, nullptr));
  const bool reads = !is_refused(process_vm_readv(getpid(), &own, 1, &own, 1, 0));
  const bool leaves = !is_refused(unshare(0));
  return !forks && !executes && !signals && !connects && !traces && !reads && !leaves;
}

}  // namespace

FAULTY CUresult cuMemsetD32Async(CUdeviceptr destination, unsigned value, size_t count, CUstream stream) {
  if (value == kTryingValue) return had_no_rights() ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_UNKNOWN;
  return ORIGINAL(cuMemsetD32Async)(destination, value, count, stream);
}

#elif MPSSHIM_FAULT == GROWN_NODES || MPSSHIM_FAULT == NARROW_NODES

namespace {

constexpr std::size_t kMostRoom = MPSSHIM_FAULT == NARROW_NODES ? 24 : std::numeric_limits<std::size_t>::max();

struct Parameters {
  std::vector<std::byte> bytes;
  std::vector<std::size_t> offsets;  // of each
};

struct Held {
  std::vector<std::byte> bytes;
  std::size_t room = 0;  // the most bytes that there have been
};

std::mutex mutex;
std::map<CUgraphNode, Held> added;
std::map<std::pair<CUgraphExec, CUgraphNode>, Held> executable;

// Of a kernel's launch. Given as one buffer ("extra") they count, and are taken for zeros.
Parameters parameters_of(const CUDA_KERNEL_NODE_PARAMS& params) {
  Parameters all;
  std::size_t offset = 0, size = 0;
  for (std::size_t i = 0; ORIGINAL(cuFuncGetParamInfo)(params.func, i, &offset, &size) == CUDA_SUCCESS; ++i) {
    all.bytes.resize(offset + size);
    all.offsets.push_back(offset);
    if (params.kernelParams != nullptr) std::memcpy(&all.bytes[offset], params.kernelParams[i], size);
  }
  return all;
}

// The node holds other bytes than it was to: those that it had, and zeros where it had none.
CUresult grow(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS& params, const Parameters& wanted, Held& held) {
  std::fprintf(stderr, "a node grew: from %zu bytes of parameters to %zu\n", held.room, wanted.bytes.size());
  held.room = wanted.bytes.size();
  held.bytes.resize(held.room);
  std::vector<void*> addresses;
  for (const std::size_t offset : wanted.offsets) addresses.push_back(&held.bytes[offset]);
  CUDA_KERNEL_NODE_PARAMS wrong = params;
  wrong.kernelParams = addresses.data();
  wrong.extra = nullptr;
  return ORIGINAL(cuGraphExecKernelNodeSetParams_v2)(exec, node, &wrong);
}

}  // namespace

FAULTY CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                        const CUDA_KERNEL_NODE_PARAMS* params) {
  const std::lock_guard lock(mutex);
  const CUresult result = ORIGINAL(cuGraphAddKernelNode_v2)(node, graph, dependencies, count, params);
  if (result != CUDA_SUCCESS) return result;
  Held held{parameters_of(*params).bytes};
  held.room = std::min(held.bytes.size(), kMostRoom);
  added[*node] = std::move(held);
  return result;
}

FAULTY CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  const std::lock_guard lock(mutex);
  const CUresult result = ORIGINAL(cuGraphInstantiateWithFlags)(exec, graph, flags);
  if (result != CUDA_SUCCESS) return result;
  std::erase_if(executable, [&](const auto& known) { return known.first.first == *exec; });  // a handle used again
  std::size_t count = 0;
  ORIGINAL(cuGraphGetNodes)(graph, nullptr, &count);
  std::vector<CUgraphNode> nodes(count);
  ORIGINAL(cuGraphGetNodes)(graph, nodes.data(), &count);
  for (const CUgraphNode node : nodes) {
    if (const auto found = added.find(node); found != added.end()) executable[{*exec, node}] = found->second;
  }
  return result;
}

FAULTY CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  const std::lock_guard lock(mutex);
  const auto found = executable.find({exec, node});
  if (found == executable.end()) return ORIGINAL(cuGraphExecKernelNodeSetParams_v2)(exec, node, params);
  Held& held = found->second;
  Parameters wanted = parameters_of(*params);
  if (wanted.bytes.size() > held.room) return grow(exec, node, *params, wanted, held);
  held.bytes = std::move(wanted.bytes);
  return ORIGINAL(cuGraphExecKernelNodeSetParams_v2)(exec, node, params);
}

#else
#error "MPSSHIM_FAULT names no fault"
#endif
