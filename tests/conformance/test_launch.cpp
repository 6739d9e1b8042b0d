// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;
using namespace std::chrono_literals;

TEST_CASE("first light: mapped memory, a fat binary, a launch, a fence") {
  MPSSHIM_SKIP_UNDER_TSAN();
  const DeviceContext context;
  const LoadedImage image;
  constexpr int kCount = 10'000;
  constexpr size_t kGranule = size_t{2} << 20;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUdeviceptr memory = 0;
  CUmemGenericAllocationHandle handle = 0;
  OK(CU(cuMemAddressReserve)(&memory, kGranule, 0, 0x310000000000, 0));
  OK(CU(cuMemCreate)(&handle, kGranule, &prop, 0));
  OK(CU(cuMemMap)(memory, kGranule, 0, handle, 0));
  OK(CU(cuMemSetAccess)(memory, kGranule, &access, 1));

  std::vector<float> a(kCount);
  std::vector<float> b(kCount);
  for (int i = 0; i < kCount; ++i) {
    a[static_cast<size_t>(i)] = static_cast<float>(i);
    b[static_cast<size_t>(i)] = 0.5f;
  }
  const size_t bytes = kCount * sizeof(float);
  const CUdeviceptr da = memory;
  const CUdeviceptr db = memory + bytes;
  const CUdeviceptr dc = memory + 2 * bytes;
  SharedWord fence;
  const CUstream stream = new_stream();
  OK(CU(cuMemcpyHtoDAsync)(da, a.data(), bytes, stream));
  OK(CU(cuMemcpyHtoDAsync)(db, b.data(), bytes, stream));
  OK(launch(image.function("vector_add"), stream, (kCount + 255) / 256, 256, da, db, dc, kCount));
  OK(CU(cuStreamWriteValue32)(stream, fence.address(), 1, 0));
  while (*fence != 1u) std::this_thread::yield();
  std::vector<float> c(kCount);
  OK(CU(cuMemcpyDtoH)(c.data(), dc, bytes));
  CHECK(c[0] == 0.5f);
  CHECK(c[kCount - 1] == kCount - 1 + 0.5f);
  OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuMemUnmap)(memory, kGranule));
  OK(CU(cuMemRelease)(handle));
  OK(CU(cuMemAddressFree)(memory, kGranule));
}

TEST_CASE("variables of a module: initial values, and writing them", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  CUdeviceptr counter = 0;
  size_t bytes = 0;
  OK(CU(cuModuleGetGlobal)(&counter, &bytes, image.handle(), "counter"));
  CHECK(bytes == 4);
  DeviceArray<int> out(2);
  OK(launch(image.function("read_variables"), nullptr, 1, 1, out.address()));
  CHECK(out[0] == 5);
  CHECK(out[1] == 10);
  OK(CU(cuMemsetD32)(counter, 77, 1));
  OK(launch(image.function("read_variables"), nullptr, 1, 1, out.address()));
  CHECK(out[0] == 77);
  CHECK(CU(cuModuleGetGlobal)(&counter, &bytes, image.handle(), "no_such_variable") == CUDA_ERROR_NOT_FOUND);
}

TEST_CASE("every load has variables of its own", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage first;
  const LoadedImage second;
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  OK(CU(cuModuleGetGlobal)(&a, nullptr, first.handle(), "counter"));
  OK(CU(cuModuleGetGlobal)(&b, nullptr, second.handle(), "counter"));
  CHECK(a != b);
}

TEST_CASE("what a function says of itself", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction function = image.function("vector_add");
  size_t offset = 0;
  size_t size = 0;
  OK(CU(cuFuncGetParamInfo)(function, 3, &offset, &size));
  CHECK(offset == 24);
  CHECK(size == 4);
  CHECK(CU(cuFuncGetParamInfo)(function, 4, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
  const char* name = nullptr;
  OK(CU(cuFuncGetName)(&name, function));
  CHECK(std::string(name) == "vector_add");
  int value = 0;
  OK(CU(cuFuncGetAttribute)(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, image.function("bounded")));
  CHECK(value == 64);
  OK(CU(cuFuncGetAttribute)(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, image.function("shared_memory")));
  CHECK(value == 128);
  CUfunction found = nullptr;
  CHECK(CU(cuModuleGetFunction)(&found, image.handle(), "no_such_kernel") == CUDA_ERROR_NOT_FOUND);
  unsigned count = 0;
  OK(CU(cuModuleGetFunctionCount)(&count, image.handle()));
  CHECK(count == 23);
}

TEST_CASE("launches that cannot be are refused", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  DeviceArray<int> out(1);
  const CUfunction bounded = image.function("bounded");
  CHECK(launch(bounded, nullptr, 1, 65, out.address()) == CUDA_ERROR_INVALID_VALUE);  // more than its __launch_bounds__
  CHECK(launch(bounded, nullptr, 0, 1, out.address()) == CUDA_ERROR_INVALID_VALUE);
  CHECK(launch(bounded, nullptr, 1, 1025, out.address()) == CUDA_ERROR_INVALID_VALUE);
  OK(launch(bounded, nullptr, 1, 64, out.address()));
  CHECK(out[0] == 64);
  const CUfunction shared = image.function("shared_memory");
  CUdeviceptr address = out.address();
  void* arguments[] = {&address};
  CHECK(CU(cuLaunchKernel)(shared, 1, 1, 1, 32, 1, 1, 48 * 1024, nullptr, arguments, nullptr) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuFuncSetAttribute)(shared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 50 * 1024));
  OK(CU(cuLaunchKernel)(shared, 1, 1, 1, 32, 1, 1, 48 * 1024, nullptr, arguments, nullptr));
  CHECK(out[0] == 1);
  CHECK(CU(cuFuncSetAttribute)(shared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 20) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("arguments in one buffer, and attributes of a launch", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  DeviceArray<unsigned> out(1);
  struct {
    CUdeviceptr where;
    unsigned value;
  } arguments{out.address(), 31};
  static_assert(sizeof arguments == 16);
  size_t bytes = 12;  // without the padding behind the last argument
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  const CUfunction store = image.function("store");
  CUlaunchAttribute attributes[2]{};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  attributes[0].value.priority = -1;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_IGNORE;
  CUlaunchConfig config{1, 1, 1, 1, 1, 1, 0, nullptr, attributes, 2};
  CHECK(CU(cuLaunchKernelEx)(&config, store, nullptr, extra) == CUDA_SUCCESS);
  CHECK(out[0] == 31);
  // One byte more than the arguments have, be it padding, is too many. Fewer are taken.
  const auto with_buffer_of = [&](size_t given) {
    bytes = given;
    return CU(cuLaunchKernel)(store, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra);
  };
  CHECK(with_buffer_of(16) == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  CHECK(with_buffer_of(13) == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  CHECK(with_buffer_of(8) == CUDA_SUCCESS);
  CHECK(with_buffer_of(0) == CUDA_ERROR_INVALID_VALUE);
  OK(with_buffer_of(12));
  CUdeviceptr address = out.address();
  unsigned value = 32;
  void* pointers[] = {&address, &value};
  CHECK(CU(cuLaunchKernel)(store, 1, 1, 1, 1, 1, 1, 0, nullptr, pointers, extra) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuLaunchKernel)(store, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuCtxSynchronize)());
}

TEST_CASE("a cooperative launch may wait for its whole grid, and no larger one is taken", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  constexpr unsigned kBlocks = 16;
  DeviceArray<unsigned> count(1);
  DeviceArray<unsigned> seen(kBlocks);
  CUdeviceptr count_address = count.address();
  CUdeviceptr seen_address = seen.address();
  void* arguments[] = {&count_address, &seen_address};
  const CUfunction function = image.function("grid_barrier");
  OK(CU(cuLaunchCooperativeKernel)(function, kBlocks, 1, 1, 32, 1, 1, 0, nullptr, arguments));
  for (unsigned i = 0; i < kBlocks; ++i) CHECK(seen[i] == kBlocks * 32);
  int per_multiprocessor = 0;
  int multiprocessors = 0;
  OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&per_multiprocessor, function, 32, 0));
  OK(CU(cuDeviceGetAttribute)(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  const auto too_many = static_cast<unsigned>(per_multiprocessor * multiprocessors) + 1;
  CHECK(CU(cuLaunchCooperativeKernel)(function, too_many, 1, 1, 32, 1, 1, 0, nullptr, arguments) == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

TEST_CASE("kernels of many streams run at once", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction spin = image.function("spin");
  const CUfunction store = image.function("store");
  SharedWord gate;
  constexpr int kStreams = 20;
  std::vector<CUstream> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(new_stream());
    OK(launch(spin, streams.back(), 1, 1, gate.address()));
  }
  const CUstream opener = new_stream();
  OK(launch(store, opener, 1, 1, gate.address(), 1u));  // hangs if the spinning ones hold everything
  OK(CU(cuCtxSynchronize)());
  for (const CUstream stream : streams) OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuStreamDestroy)(opener));
}

TEST_CASE("a stream takes about a thousand launches and blocks the caller of the next") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction spin = image.function("spin");
  const CUfunction store = image.function("store");
  SharedWord gate;
  SharedWord result;
  constexpr int kLaunches = 1500;
  const CUstream stream = new_stream();
  const CUstream other = new_stream();
  std::atomic<int> taken{0};
  OK(launch(spin, stream, 1, 1, gate.address()));
  std::thread launching([&] {
    CU(cuCtxSetCurrent)(context.handle());
    while (taken < kLaunches && launch(store, stream, 1, 1, result.address(), 2u) == CUDA_SUCCESS) ++taken;
  });
  int before = -1;
  while (before != taken) {
    before = taken;
    std::this_thread::sleep_for(100ms);
  }
  CHECK(before >= 1000);
  CHECK(before <= 1100);
  if (is_cpu_driver()) CHECK(before == 1020);            // and the one that runs
  OK(launch(store, other, 1, 1, result.address(), 3u));  // others go on
  OK(CU(cuStreamSynchronize)(other));
  *gate = 1;
  launching.join();
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(taken == kLaunches);
  CHECK(*result == 2);
  OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuStreamDestroy)(other));
}

TEST_CASE("freeing memory waits for running kernels, and holds most calls of others meanwhile") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction spin = image.function("spin");
  const CUfunction store = image.function("store");
  SharedWord gate;
  SharedWord result;
  CUdeviceptr victim = 0;
  CUdeviceptr kept = 0;
  OK(CU(cuMemAlloc)(&victim, 4096));
  OK(CU(cuMemAlloc)(&kept, 4096));
  const CUstream busy = new_stream();
  const CUstream other = new_stream();
  OK(launch(spin, busy, 1, 1, gate.address()));
  gate.wait_for_spinning();

  std::atomic<int> done{0};
  std::atomic<int> passed{0};
  void* pinned = nullptr;
  CUevent event = nullptr;
  const auto in_a_thread = [&](auto&& call) {
    std::thread thread([&context, call] {
      CU(cuCtxSetCurrent)(context.handle());
      call();
    });
    std::this_thread::sleep_for(50ms);
    return thread;
  };
  std::thread freeing = in_a_thread([&] { CU(cuMemFree)(victim), ++done; });
  std::thread launching = in_a_thread([&] { launch(store, other, 1, 1, result.address(), 1u), ++done; });
  std::thread allocating = in_a_thread([&] { CU(cuMemHostAlloc)(&pinned, 4096, 0), ++done; });
  std::thread filling = in_a_thread([&] { CU(cuMemsetD8Async)(kept, 0, 16, other), ++done; });
  std::thread making = in_a_thread([&] { CU(cuEventCreate)(&event, 0), ++done; });
  std::thread writing = in_a_thread([&] { CU(cuStreamWriteValue32)(busy, result.address() + 64, 1, 0), ++passed; });
  std::this_thread::sleep_for(100ms);
  CHECK(done == 0);
  CHECK(passed == 1);
  *gate = 1;
  for (std::thread* thread : {&freeing, &launching, &allocating, &filling, &making, &writing}) thread->join();
  OK(CU(cuCtxSynchronize)());
  CHECK(*result == 1);
  OK(CU(cuMemFreeHost)(pinned));
  OK(CU(cuMemFree)(kept));
  OK(CU(cuEventDestroy)(event));
  OK(CU(cuStreamDestroy)(busy));
  OK(CU(cuStreamDestroy)(other));
}

TEST_CASE("a module unloaded while a launch is queued is still there for it", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage stays;
  const CUfunction spin = stays.function("spin");
  SharedWord gate;
  SharedWord result;
  const CUstream stream = new_stream();
  const std::string image = read_image("kernels.fatbin");
  CUmodule goes = nullptr;
  CUfunction store = nullptr;
  OK(CU(cuModuleLoadData)(&goes, image.data()));
  OK(CU(cuModuleGetFunction)(&store, goes, "store"));
  OK(launch(spin, stream, 1, 1, gate.address()));
  OK(launch(store, stream, 1, 1, result.address(), 5u));
  gate.wait_for_spinning();
  std::atomic<bool> unloaded{false};
  std::thread unloading([&] {
    CU(cuCtxSetCurrent)(context.handle());
    unloaded = CU(cuModuleUnload)(goes) == CUDA_SUCCESS;
  });
  std::this_thread::sleep_for(50ms);
  if (driver_kind() == DriverKind::real) CHECK(!unloaded);  // it waits for the running kernel
  *gate = 1;
  unloading.join();
  CHECK(unloaded);
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(*result == 5);
  if (refuses_dead_handles()) CHECK(launch(store, stream, 1, 1, result.address(), 6u) == CUDA_ERROR_INVALID_HANDLE);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("libraries and their kernels", "[forwarded]") {
  const DeviceContext context;
  const std::string image = read_image("kernels.fatbin");
  CUlibrary library = nullptr;
  OK(CU(cuLibraryLoadData)(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  OK(CU(cuLibraryGetKernel)(&kernel, library, "store"));
  DeviceArray<unsigned> out(1);
  OK(launch(reinterpret_cast<CUfunction>(kernel), nullptr, 1, 1, out.address(), 8u));
  CHECK(out[0] == 8);
  CUfunction function = nullptr;
  OK(CU(cuKernelGetFunction)(&function, kernel));
  OK(launch(function, nullptr, 1, 1, out.address(), 9u));
  CHECK(out[0] == 9);
  size_t offset = 0;
  size_t size = 0;
  OK(CU(cuKernelGetParamInfo)(kernel, 1, &offset, &size));
  CHECK(offset == 8);
  OK(CU(cuLibraryUnload)(library));
  if (refuses_dead_handles()) CHECK(CU(cuLibraryGetKernel)(&kernel, library, "store") == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("PTX text loads, and says where it is wrong", "[forwarded]") {
  const DeviceContext context;
  const std::string ptx = read_image("kernels.ptx");
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, ptx.c_str()));
  CUfunction store = nullptr;
  OK(CU(cuModuleGetFunction)(&store, module, "store"));
  DeviceArray<unsigned> out(1);
  OK(launch(store, nullptr, 1, 1, out.address(), 4u));
  CHECK(out[0] == 4);
  OK(CU(cuModuleUnload)(module));

  const std::string bad = ptx.substr(0, ptx.find(".visible .entry")) + "\n.visible .entry k() { frobnicate.u32 %r1; ret; }\n";
  char log[512] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CHECK(CU(cuModuleLoadDataEx)(&module, bad.c_str(), 2, options, values) == CUDA_ERROR_INVALID_PTX);
  CHECK(std::string(log).find("frobnicate") != std::string::npos);
}

TEST_CASE("PTX text is linked to an image that loads", "[forwarded]") {
  const DeviceContext context;
  std::string ptx = read_image("kernels.ptx");
  CUlinkState state = nullptr;
  OK(CU(cuLinkCreate)(0, nullptr, nullptr, &state));
  OK(CU(cuLinkAddData)(state, CU_JIT_INPUT_PTX, ptx.data(), ptx.size() + 1, "kernels", 0, nullptr, nullptr));
  void* cubin = nullptr;
  size_t size = 0;
  OK(CU(cuLinkComplete)(state, &cubin, &size));
  const std::string copy(static_cast<const char*>(cubin), size);
  OK(CU(cuLinkDestroy)(state));
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, copy.data()));
  CUfunction store = nullptr;
  OK(CU(cuModuleGetFunction)(&store, module, "store"));
  DeviceArray<unsigned> out(1);
  OK(launch(store, nullptr, 1, 1, out.address(), 4u));
  CHECK(out[0] == 4);
  OK(CU(cuModuleUnload)(module));
}

TEST_CASE("objects of -rdc are linked, by their wrapper and by the linker", "[forwarded]") {
  const DeviceContext context;
  std::string separate = read_image("separate.fatbin");
  std::string linked = read_image("linked.fatbin");
  CUmodule module = nullptr;
  SECTION("by their wrapper") {
    if (!is_cpu_driver()) return;  // a GPU wants the linked machine code in the wrapper
    const void* const others[] = {separate.data(), linked.data(), nullptr};
    const std::string machine_code = read_image("cubin_only.fatbin");
    const struct {
      unsigned magic = 0x466243b1;
      unsigned version = 2;
      const void* data;
      const void* others;
    } wrapper{.data = machine_code.data(), .others = others};
    OK(CU(cuModuleLoadData)(&module, &wrapper));
  }
  SECTION("by the linker") {
    CUlinkState state = nullptr;
    OK(CU(cuLinkCreate)(0, nullptr, nullptr, &state));
    for (std::string* object : {&separate, &linked}) {
      OK(CU(cuLinkAddData)(state, CU_JIT_INPUT_FATBINARY, object->data(), object->size(), "", 0, nullptr, nullptr));
    }
    void* cubin = nullptr;
    size_t size = 0;
    OK(CU(cuLinkComplete)(state, &cubin, &size));
    OK(CU(cuModuleLoadData)(&module, cubin));
    OK(CU(cuLinkDestroy)(state));
  }
  CUfunction function = nullptr;
  OK(CU(cuModuleGetFunction)(&function, module, "calls_the_other"));
  DeviceArray<int> out(1);
  OK(launch(function, nullptr, 1, 1, out.address(), 7));
  CHECK(out[0] == 121);
  OK(CU(cuModuleUnload)(module));
}

TEST_CASE("an image without PTX is refused for what it is") {
  if (!is_cpu_driver()) MPSSHIM_SKIP("a GPU may run it");
  const DeviceContext context;
  const std::string image = read_image("cubin_only.fatbin");
  CUmodule module = nullptr;
  char log[512] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CHECK(CU(cuModuleLoadDataEx)(&module, image.data(), 2, options, values) == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(std::string(log).find("-gencode arch=compute_80,code=compute_80") != std::string::npos);
  CHECK(CU(cuModuleLoadData)(&module, "neither this nor that") == CUDA_ERROR_INVALID_IMAGE);
}
