// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <string>
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
