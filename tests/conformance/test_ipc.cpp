// SPDX-License-Identifier: Apache-2.0
// Memory of one process that another uses: inter-process handles, shareable handles.
#include <vector>

#include "other_process.hpp"

using namespace mpsshim::test;

// Hidden: the other side.
TEST_CASE("opens memory of another process", "[.]") {
  const DeviceContext context;
  const int socket = own_socket();
  CUipcMemHandle handle{};
  hear(socket, &handle, sizeof handle);
  CUdeviceptr memory = 0, again = 0;
  OK(CU(cuIpcOpenMemHandle)(&memory, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CHECK(words_at(memory) == std::vector<unsigned>(kWords, 11));
  OK(CU(cuIpcOpenMemHandle)(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CHECK(again == memory);
  OK(CU(cuIpcCloseMemHandle)(again));
  CHECK(CU(cuMemFree)(memory) != CUDA_SUCCESS);
  OK(CU(cuMemsetD32)(memory, 22, kWords));
  OK(CU(cuCtxSynchronize)());
  OK(CU(cuIpcCloseMemHandle)(memory));
  CHECK(CU(cuMemsetD32)(memory, 33, kWords) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("an allocation is opened by another process", "[forwarded]") {
  const DeviceContext context;
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no inter-process handles");
  const Pair pair;
  CUdeviceptr before = 0, memory = 0;
  OK(CU(cuMemAlloc)(&before, 5000));  // so that it does not begin a chunk
  OK(CU(cuMemAlloc)(&memory, kWords * 4));
  OK(CU(cuMemsetD32)(before, 1, 1250));
  OK(CU(cuMemsetD32)(memory, 11, kWords));
  OK(CU(cuCtxSynchronize)());
  CUipcMemHandle handle{};
  OK(CU(cuIpcGetMemHandle)(&handle, memory));
  const pid_t child = start_other("opens memory of another process", pair);
  REQUIRE(child > 0);
  say(pair.ends[0], &handle, sizeof handle);
  CHECK(exit_of(child) == 0);
  CHECK(words_at(memory) == std::vector<unsigned>(kWords, 22));
  CHECK(words_at(before) == std::vector<unsigned>(kWords, 1));

  CUdeviceptr own = 0;
  CHECK(CU(cuIpcOpenMemHandle)(&own, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);  // of this very process
  CHECK(CU(cuIpcGetMemHandle)(&handle, 0x1234) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuIpcGetMemHandle)(nullptr, memory) == CUDA_ERROR_INVALID_VALUE);
  CUipcMemHandle nonsense{};
  CHECK(CU(cuIpcOpenMemHandle)(&own, nonsense, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
  CHECK(CU(cuIpcCloseMemHandle)(memory) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(memory));
  OK(CU(cuMemFree)(before));
}

TEST_CASE("imports memory of another process", "[.]") {
  const DeviceContext context;
  const int fd = receive_descriptor(own_socket());
  REQUIRE(fd >= 0);
  CUmemGenericAllocationHandle handle = 0;
  OK(CU(cuMemImportFromShareableHandle)(&handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  CUdeviceptr range = 0;
  OK(CU(cuMemAddressReserve)(&range, 16 * kGranule, 0, 0, 0));
  OK(CU(cuMemMap)(range, 2 * kGranule, 0, handle, 0));
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  OK(CU(cuMemSetAccess)(range, 2 * kGranule, &access, 1));
  CHECK(words_at(range + kGranule) == std::vector<unsigned>(kWords, 44));
  OK(CU(cuMemsetD32)(range + kGranule, 55, kWords));
  OK(CU(cuCtxSynchronize)());
  OK(CU(cuMemUnmap)(range, 2 * kGranule));
  OK(CU(cuMemRelease)(handle));
  OK(CU(cuMemAddressFree)(range, 16 * kGranule));
}

TEST_CASE("exported memory is imported by another process", "[forwarded]") {
  const DeviceContext context;
  const Pair pair;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle private_handle = 0, handle = 0;
  int fd = -1;
  OK(CU(cuMemCreate)(&private_handle, kGranule, &prop, 0));
  CHECK(CU(cuMemExportToShareableHandle)(&fd, private_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS);
  OK(CU(cuMemRelease)(private_handle));
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  OK(CU(cuMemCreate)(&handle, 2 * kGranule, &prop, 0));
  CUdeviceptr range = 0;
  OK(CU(cuMemAddressReserve)(&range, 16 * kGranule, 0, 0, 0));
  OK(CU(cuMemMap)(range, 2 * kGranule, 0, handle, 0));
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  OK(CU(cuMemSetAccess)(range, 2 * kGranule, &access, 1));
  OK(CU(cuMemsetD32)(range + kGranule, 44, kWords));
  OK(CU(cuCtxSynchronize)());
  OK(CU(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  REQUIRE(fd >= 0);
  const pid_t child = start_other("imports memory of another process", pair);
  REQUIRE(child > 0);
  send_descriptor(pair.ends[0], fd);
  CHECK(exit_of(child) == 0);
  CHECK(words_at(range + kGranule) == std::vector<unsigned>(kWords, 55));

  // The same in this process.
  CUmemGenericAllocationHandle own = 0;
  OK(CU(cuMemImportFromShareableHandle)(&own, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  OK(CU(cuMemMap)(range + 8 * kGranule, 2 * kGranule, 0, own, 0));
  OK(CU(cuMemSetAccess)(range + 8 * kGranule, 2 * kGranule, &access, 1));
  CHECK(words_at(range + 9 * kGranule) == std::vector<unsigned>(kWords, 55));
  OK(CU(cuMemUnmap)(range + 8 * kGranule, 2 * kGranule));
  OK(CU(cuMemRelease)(own));
  close(fd);

  int ends[2];
  REQUIRE(pipe(ends) == 0);
  CHECK(CU(cuMemImportFromShareableHandle)(&own, reinterpret_cast<void*>(static_cast<std::intptr_t>(ends[0])),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS);
  close(ends[0]);
  close(ends[1]);
  OK(CU(cuMemUnmap)(range, 2 * kGranule));
  OK(CU(cuMemRelease)(handle));
  OK(CU(cuMemAddressFree)(range, 16 * kGranule));
}

TEST_CASE("imports a pool of another process", "[.]") {
  const DeviceContext context;
  const int fd = receive_descriptor(own_socket());
  REQUIRE(fd >= 0);
  CUmemPoolPtrExportData exported[2];
  hear(own_socket(), exported, sizeof exported);
  CUmemoryPool pool = nullptr, current = nullptr;
  OK(CU(cuMemPoolImportFromShareableHandle)(&pool, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            0));
  close(fd);
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr first = 0, second = 0, own = 0;
  OK(CU(cuMemPoolImportPointer)(&first, pool, &exported[0]));
  OK(CU(cuMemPoolImportPointer)(&second, pool, &exported[1]));
  CHECK(words_at(first) == std::vector<unsigned>(kWords, 71));
  CHECK(words_at(second) == std::vector<unsigned>(kWords, 72));
  OK(CU(cuMemsetD32)(second, 73, kWords));
  OK(CU(cuCtxSynchronize)());
  CHECK(CU(cuMemAllocFromPoolAsync)(&own, 1024, pool, stream) != CUDA_SUCCESS);  // its maker's alone
  CHECK(CU(cuDeviceSetMemPool)(0, pool) != CUDA_SUCCESS);
  OK(CU(cuDeviceGetMemPool)(&current, 0));
  CHECK(CU(cuMemPoolImportPointer)(&own, current, &exported[0]) != CUDA_SUCCESS);
  OK(CU(cuMemFreeAsync)(first, stream));
  OK(CU(cuMemFree)(second));
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuMemPoolDestroy)(pool));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("memory of a pool is imported by another process", "[forwarded]") {
  const DeviceContext context;
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no memory pools: they are made in the client");
  const Pair pair;
  int types = 0;
  OK(CU(cuDeviceGetAttribute)(&types, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 0));
  CHECK((types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0);
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr, private_pool = nullptr;
  OK(CU(cuMemPoolCreate)(&private_pool, &props));
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  OK(CU(cuMemPoolCreate)(&pool, &props));
  int fd = -1;
  CHECK(CU(cuMemPoolExportToShareableHandle)(&fd, private_pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS);
  CHECK(CU(cuMemPoolExportToShareableHandle)(nullptr, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemPoolExportToShareableHandle)(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  REQUIRE(fd >= 0);
  CUdeviceptr first = 0, second = 0, other = 0;
  OK(CU(cuMemAllocFromPoolAsync)(&first, kWords * 4, pool, stream));
  OK(CU(cuMemAllocFromPoolAsync)(&second, kWords * 4, pool, stream));
  OK(CU(cuMemAllocFromPoolAsync)(&other, kWords * 4, private_pool, stream));
  OK(CU(cuMemsetD32Async)(first, 71, kWords, stream));
  OK(CU(cuMemsetD32Async)(second, 72, kWords, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CUmemPoolPtrExportData exported[2];
  OK(CU(cuMemPoolExportPointer)(&exported[0], first));
  OK(CU(cuMemPoolExportPointer)(&exported[1], second));
  CUmemPoolPtrExportData none;
  CHECK(CU(cuMemPoolExportPointer)(&none, other) != CUDA_SUCCESS);
  CHECK(CU(cuMemPoolExportPointer)(nullptr, first) == CUDA_ERROR_INVALID_VALUE);
  const pid_t child = start_other("imports a pool of another process", pair);
  REQUIRE(child > 0);
  send_descriptor(pair.ends[0], fd);
  say(pair.ends[0], exported, sizeof exported);
  CHECK(exit_of(child) == 0);
  CHECK(words_at(first) == std::vector<unsigned>(kWords, 71));
  CHECK(words_at(second) == std::vector<unsigned>(kWords, 73));
  close(fd);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  CUmemoryPool imported = nullptr;
  CHECK(CU(cuMemPoolImportFromShareableHandle)(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(ends[0])),
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS);
  close(ends[0]);
  close(ends[1]);
  for (const CUdeviceptr memory : {first, second, other}) OK(CU(cuMemFreeAsync)(memory, stream));
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuMemPoolDestroy)(pool));
  OK(CU(cuMemPoolDestroy)(private_pool));
  OK(CU(cuStreamDestroy)(stream));
}
