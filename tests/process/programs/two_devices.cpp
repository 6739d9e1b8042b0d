// SPDX-License-Identifier: Apache-2.0
// Contexts of both devices and what they make; the program itself.
#include "tests/process/programs/two_devices.hpp"

#include <cstdio>
#include <cstring>
#include <utility>

#include "tests/process/programs/conversation.hpp"
#include "tests/process/programs/two_devices_converse.hpp"

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
