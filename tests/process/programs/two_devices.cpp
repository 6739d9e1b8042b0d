// SPDX-License-Identifier: Apache-2.0
// Contexts of both devices and what they make; the program itself.
//
// two_devices converse: a command a line, an answer a line, as test_client. `work N` launches on device N and checks what all launches there have
// made: "ok", or what failed. `enable` lets each device reach the other's memory, 64 MiB more of it and mapped memory of the second among it; then
// `reach N` launches on device N over all that the other has. More commands: two_devices_exports.hpp.
#include "tests/process/programs/two_devices.hpp"

#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "tests/process/programs/conversation.hpp"
#include "tests/process/programs/two_devices_exports.hpp"

using namespace mpsshim::test;

namespace {

void contexts(Sides& sides) {
  CUdevice device = -1;
  for (const Side& side : sides) {
    side.use();
    CU(cuCtxGetDevice(&device));
    require(device == side.device, "the current context has another device");
    CUstream made = nullptr;
    CU(cuStreamCreate(&made, CU_STREAM_DEFAULT));
    CUcontext of_stream = nullptr;
    CU(cuStreamGetCtx(made, &of_stream));
    require(of_stream == side.context, "a stream has another context");
    CU(cuStreamDestroy(made));
  }
  CU(cuCtxPushCurrent(sides[0].context));
  CU(cuCtxGetDevice(&device));
  require(device == sides[0].device, "a pushed context is not current");
  CU(cuCtxPopCurrent(nullptr));
  CU(cuCtxGetDevice(&device));
  require(device == sides[1].device, "the context below is not current again");
  CUcontext of_stream = nullptr;
  CU(cuStreamGetCtx(sides[0].stream, &of_stream));
  require(of_stream == sides[0].context, "a stream's context follows the current one");
}

void memory(Sides& sides) {
  for (unsigned i = 0; i < 2; ++i) {
    const Side& side = sides[i];
    sides[1 - i].use();  // of the other device
    int ordinal = -1;
    CUcontext context = nullptr;
    CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, side.data));
    CU(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, side.data));
    require(ordinal == side.device && context == side.context, "a pointer is told to be another device's");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(side.data, 7 + i, kWords));  // out of the current context's reach
    const std::vector<unsigned> words(kWords, 7 + i);
    CU(cuMemcpyHtoD(side.data, words.data(), kBytes));
  }
  for (unsigned i = 0; i < 2; ++i) {
    sides[i].use();
    CU(cuCtxSynchronize());
    require_all(sides[i].read(sides[i].data), 7 + i, "a fill");
    CUdeviceptr more = 0;
    CU(cuMemAlloc(&more, 5 << 20));
    sides[1 - i].use();
    CU(cuMemFree(more));  // with the other context current
  }
  void* pinned = nullptr;
  sides[0].use();
  CU(cuMemHostAlloc(&pinned, kBytes, CU_MEMHOSTALLOC_PORTABLE));
  auto* const words = static_cast<unsigned*>(pinned);
  for (unsigned i = 0; i < kWords; ++i) words[i] = i * 3;
  sides[1].use();
  CU(cuMemcpyHtoDAsync(sides[1].data, pinned, kBytes, sides[1].stream));
  CU(cuStreamSynchronize(sides[1].stream));
  require_index(sides[1].read(sides[1].data), 3, "an upload of the other context's pinned memory");
  std::memset(pinned, 0, kBytes);
  CU(cuMemcpyDtoHAsync(pinned, sides[1].data, kBytes, sides[1].stream));
  CU(cuStreamSynchronize(sides[1].stream));
  require_index({words, words + kWords}, 3, "a download to the other context's pinned memory");
  CU(cuMemFreeHost(pinned));
}

void kernels(Sides& sides) {
  for (unsigned round = 0; round < 50; ++round) {
    for (unsigned i = 0; i < 2; ++i) {
      sides[i].use();
      sides[i].launch_add(sides[i].data, 1 + i);
    }
  }
  for (unsigned i = 0; i < 2; ++i) {
    CU(cuStreamSynchronize(sides[i].stream));  // whatever context is current
    sides[i].use();
    require_all(sides[i].read(sides[i].data), 50 * (1 + i), "launches in turn");
  }
}

void libraries(Sides& sides) {
  sides[0].use();
  CUlibrary library = nullptr;
  CU(cuLibraryLoadData(&library, kPlainPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  CU(cuLibraryGetKernel(&kernel, library, "add"));
  for (unsigned round = 0; round < 20; ++round) {
    for (const Side& side : sides) {
      side.use();
      side.launch_add(reinterpret_cast<CUfunction>(kernel), side.data, 2);
    }
  }
  for (const Side& side : sides) {
    side.use();
    CU(cuStreamSynchronize(side.stream));
    require_all(side.read(side.data), 40, "a library's kernel");
    CUfunction function = nullptr;
    CU(cuKernelGetFunction(&function, kernel));
    side.launch_add(function, side.data, 2);
    CU(cuStreamSynchronize(side.stream));
    require_all(side.read(side.data), 42, "the function of a library's kernel");
    int threads = 0;
    CU(cuKernelGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, side.device));
    require(threads >= 128, "a kernel's attribute");
  }
  CU(cuLibraryUnload(library));

  // Variables are each device's own.
  CU(cuLibraryLoadData(&library, kGlobalPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  for (unsigned i = 0; i < 2; ++i) {
    sides[i].use();
    CUdeviceptr counter = 0;
    size_t bytes = 0;
    CU(cuLibraryGetGlobal(&counter, &bytes, library, "counter"));
    unsigned value = 0;
    CU(cuMemcpyDtoH(&value, counter, sizeof value));
    require(value == 5, "a variable does not begin as the image says");
    value = 100 + i;
    CU(cuMemcpyHtoD(counter, &value, sizeof value));
  }
  for (unsigned i = 0; i < 2; ++i) {
    sides[i].use();
    CUdeviceptr counter = 0;
    CU(cuLibraryGetGlobal(&counter, nullptr, library, "counter"));
    unsigned value = 0;
    CU(cuMemcpyDtoH(&value, counter, sizeof value));
    require(value == 100 + i, "a variable is shared by devices");
  }
  CU(cuLibraryUnload(library));
}

void pools(Sides& sides) {
  std::array<CUmemoryPool, 2> pool{};
  for (unsigned i = 0; i < 2; ++i) CU(cuDeviceGetDefaultMemPool(&pool[i], sides[i].device));
  require(pool[0] != pool[1], "two devices have one pool");
  for (unsigned round = 0; round < 20; ++round) {
    for (unsigned i = 0; i < 2; ++i) {
      sides[i].use();
      CUdeviceptr words = 0;
      CU(cuMemAllocAsync(&words, kBytes, sides[i].stream));
      CU(cuMemsetD32Async(words, round, kWords, sides[i].stream));
      sides[i].launch_add(words, 1 + i);
      std::vector<unsigned> found(kWords);
      CU(cuMemcpyDtoHAsync(found.data(), words, kBytes, sides[i].stream));
      sides[1 - i].use();
      CU(cuMemFreeAsync(words, sides[i].stream));
      CU(cuStreamSynchronize(sides[i].stream));
      require_all(found, round + 1 + i, "memory of a pool");
    }
  }
}

void graphs(Sides& sides) {
  std::array<CUgraphExec, 2> execs{};
  for (unsigned i = 0; i < 2; ++i) {
    sides[i].use();
    CU(cuStreamBeginCapture(sides[i].stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    sides[i].launch_add(sides[i].data, 3 + i);
    sides[i].launch_add(sides[i].data, 3 + i);
    CUgraph graph = nullptr;
    CU(cuStreamEndCapture(sides[i].stream, &graph));
    sides[1 - i].use();  // a graph knows whose it is
    CU(cuGraphInstantiate(&execs[i], graph, 0));
    CU(cuGraphDestroy(graph));
  }
  for (unsigned round = 0; round < 10; ++round) {
    for (unsigned i = 0; i < 2; ++i) CU(cuGraphLaunch(execs[i], sides[i].stream));
  }
  for (unsigned i = 0; i < 2; ++i) {
    CU(cuStreamSynchronize(sides[i].stream));
    sides[i].use();
    require_all(sides[i].read(sides[i].data), 20 * (3 + i), "graphs on two devices");
    CU(cuGraphExecDestroy(execs[i]));
  }
}

void reset(Sides& sides) {
  sides[0].use();
  sides[0].launch_add(sides[0].data, 4);
  CU(cuDevicePrimaryCtxReset(sides[1].device));
  CU(cuStreamSynchronize(sides[0].stream));
  require_all(sides[0].read(sides[0].data), 4, "the other device was reset");
  Side anew;
  anew.make(1);
  anew.launch_add(anew.data, 9);
  CU(cuStreamSynchronize(anew.stream));
  require_all(anew.read(anew.data), 9, "a device that was reset");
  sides[0].use();
  sides[0].launch_add(sides[0].data, 4);
  CU(cuStreamSynchronize(sides[0].stream));
  require_all(sides[0].read(sides[0].data), 8, "the other device was made anew");
}

// An error of one device is that device's. Natively no context of the process can be used any more.
void fault(Sides& sides) {
  sides[1].use();
  sides[1].launch_fill(0x10, 1);
  const CUresult error = cuStreamSynchronize(sides[1].stream);
  require(error == CUDA_ERROR_ILLEGAL_ADDRESS, "a fault gives " + describe(error));
  sides[0].use();
  sides[0].launch_add(sides[0].data, 6);
  CU(cuStreamSynchronize(sides[0].stream));
  require_all(sides[0].read(sides[0].data), 6, "the other device had a fault");
}

class Conversing {
 public:
  Conversing() {
    CU(cuInit(0));
    for (int i = 0; i < 2; ++i) sides_[static_cast<std::size_t>(i)].make(i);
  }
  std::string answer(const std::string& line) {
    if (const std::string answer = exports_.answer(line, sides_); !answer.empty()) return answer;
    if (line == "enable") return enable();
    if (line == "managed") return managed_in_common();
    if (line.starts_with("meet")) return meet(line);
    require(line == "work 0" || line == "work 1" || line == "reach 0" || line == "reach 1", "unknown command " + line);
    const std::size_t which = line.back() == '1' ? 1 : 0;
    if (line.starts_with("reach")) return reach(sides_[which], 1 - which);
    const Side& side = sides_[which];
    side.use();
    side.launch_add(side.data, 3);
    CU(cuStreamSynchronize(side.stream));
    require_all(side.read(side.data), 3 * ++launches_[which], "what launches have made");
    return "ok";
  }

 private:
  std::string enable() {
    for (unsigned i = 0; i < 2; ++i) {
      sides_[i].use();
      CU(cuCtxEnablePeerAccess(sides_[1 - i].context, 0));
      more_[i].push_back(sides_[i].data);
      more_[i].push_back(0);
      CU(cuMemAlloc(&more_[i].back(), std::size_t{64} << 20));
      CU(cuMemsetD32(more_[i].back(), 0, kWords));
      void* pinned = nullptr;
      CU(cuMemHostAlloc(&pinned, kBytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
      std::memset(pinned, 0, kBytes);
      more_[i].push_back(reinterpret_cast<CUdeviceptr>(pinned));
      more_[i].push_back(0);
      CU(cuMemAllocManaged(&more_[i].back(), kBytes, CU_MEM_ATTACH_GLOBAL));
      std::memset(reinterpret_cast<void*>(more_[i].back()), 0, kBytes);  // NOLINT(performance-no-int-to-ptr)
    }
    more_[1].push_back(map_for_both(sides_));
    CU(cuMemsetD32(more_[1].back(), 0, kWords));
    CU(cuCtxSynchronize());
    return "ok";
  }
  std::string managed_in_common() {
    if (!managed_) managed_.emplace(sides_);
    managed_->work(40);
    return "ok";
  }
  // What the first device has to do waits for the second's, which is launched later and waited for later.
  std::string meet(const std::string& how) {
    const bool is_polling = how.ends_with("polling");
    if (!meeting_) meeting_.emplace(sides_);
    meeting_->launch(0, true);
    if (how == "meet flooding") flood();
    if (how == "meet loading") {
      sides_[0].use();
      const std::string text = "// " + std::to_string(meeting_->count()) + '\n' + kPlainPtx;
      CUmodule module = nullptr;
      CU(cuModuleLoadData(&module, text.c_str()));
      CU(cuModuleUnload(module));
    }
    if (how.starts_with("meet shared")) wait_for_shared(is_polling);
    for (const Side& side : sides_) {
      side.use();
      CUresult state = is_polling ? cuStreamQuery(side.stream) : cuStreamSynchronize(side.stream);
      while (is_polling && state == CUDA_ERROR_NOT_READY) state = cuStreamQuery(side.stream);
      require(state == CUDA_SUCCESS, "a meeting gives " + describe(state));
    }
    for (unsigned i = 0; i < 2; ++i) {
      sides_[i].use();
      require_all(sides_[i].read(sides_[i].data), meeting_->count() + 3 * launches_[i], "what came behind a meeting");
    }
    return "ok";
  }
  // More than there is room for before the kernel that waits has ended.
  void flood() {
    sides_[0].use();
    if (spare_ == 0) CU(cuMemAlloc(&spare_, sizeof(unsigned)));
    unsigned count = 1, value = 1;
    void* arguments[] = {&spare_, &count, &value};
    for (unsigned i = 0; i < 60'000; ++i) CU(cuLaunchKernel(sides_[0].add, 1, 1, 1, 1, 1, 1, 0, sides_[0].stream, arguments, nullptr));
  }
  // For an event of the first device that other processes may have opened.
  void wait_for_shared(bool is_polling) {
    sides_[0].use();
    CUevent event = nullptr;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    CU(cuEventRecord(event, sides_[0].stream));
    CUresult state = is_polling ? cuEventQuery(event) : cuEventSynchronize(event);
    while (is_polling && state == CUDA_ERROR_NOT_READY) state = cuEventQuery(event);
    require(state == CUDA_SUCCESS, "a shared event behind a meeting gives " + describe(state));
    CU(cuEventDestroy(event));
  }
  // Words of the other device, and its own launches go on from what they find.
  std::string reach(const Side& side, std::size_t owner) {
    side.use();
    for (const CUdeviceptr words : more_[owner]) side.launch_add(words, 3);
    CU(cuStreamSynchronize(side.stream));
    sides_[owner].use();
    ++launches_[owner];
    ++reached_[owner];
    for (const CUdeviceptr words : more_[owner]) {
      require_all(sides_[owner].read(words), 3 * (words == sides_[owner].data ? launches_[owner] : reached_[owner]),
                  "what the other device has made");
    }
    return "ok";
  }

  Sides sides_;
  std::optional<Meeting> meeting_;
  CUdeviceptr spare_ = 0;
  std::optional<ManagedForBoth> managed_;
  std::array<unsigned, 2> launches_{};
  std::array<unsigned, 2> reached_{};
  std::array<std::vector<CUdeviceptr>, 2> more_;
  Exports exports_;
};

constexpr std::pair<const char*, void (*)(Sides&)> kTopics[] = {
    {"contexts", contexts},
    {"memory", memory},
    {"kernels", kernels},
    {"libraries", libraries},
    {"events", events},
    {"ping_pong", ping_pong},
    {"waits", waits},
    {"shared_events", shared_events},
    {"copies", copies},
    {"pools", pools},
    {"graphs", graphs},
    {"reset", reset},
    {"null_streams", null_streams},
    {"forks", forks},
    {"threads", threads},
    {"fault", fault},
    {"peer_answers", peer_answers},
    {"peers", peers},
    {"peer_threads", peer_threads},
    {"peer_fault", peer_fault},
    {"peer_copies", peer_copies},
    {"peer_mappings", peer_mappings},
    {"peer_aliases", peer_aliases},
    {"peer_pools", peer_pools},
    {"peer_arrays", peer_arrays},
    {"apart_boxes", apart_boxes},
    {"fault_in_common", fault_in_common},
    {"fault_awaited", fault_awaited},
    {"meetings", meetings},
    {"churn", churn},
    {"host_memory", host_memory},
    {"registered_memory", registered_memory},
    {"host_memory_in_use", host_memory_in_use},
    {"managed", managed},
    {"managed_variables", managed_variables},
    {"managed_in_turns", managed_in_turns},
    {"managed_threads", managed_threads},
    {"managed_given_up", managed_given_up},
    {"managed_fault", managed_fault},
    {"host_memory_before", host_memory_before},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "converse") == 0) return converse<Conversing>();
  for (const auto& [name, run] : kTopics) {
    if (argc != 2 || std::strcmp(name, argv[1]) != 0) continue;
    try {
      // Natively streams that wait would hold up those that have their connection in common.
      (void)::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
      CU(cuInit(0));
      Sides sides;
      for (int i = 0; i < 2 && run != host_memory_before; ++i) sides[static_cast<std::size_t>(i)].make(i);
      run(sides);
      std::printf("%s right\n", name);
      return 0;
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "%s: %s\n", name, failure.what());
      return 1;
    }
  }
  std::fprintf(stderr, "usage: two_devices NAME\n");
  return 2;
}
