// SPDX-License-Identifier: Apache-2.0
// Memory of one device that the program lets the other reach by itself: what it maps, and pools.
#include <chrono>
#include <iterator>
#include <thread>

#include "tests/process/programs/two_devices.hpp"

namespace mpsshim::test {

namespace {

CUmemAccessDesc access_of(const Side& side, CUmemAccess_flags flags) { return {{CU_MEM_LOCATION_TYPE_DEVICE, {side.device}}, flags}; }

CUmemAllocationProp memory_of(const Side& side) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {side.device}};
  return properties;
}

size_t least_piece(const CUmemAllocationProp& properties) {
  size_t piece = 0;
  CU(cuMemGetAllocationGranularity(&piece, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return piece;
}

}  // namespace

CUdeviceptr map_for_both(Sides& sides) {
  sides[1].use();
  const CUmemAllocationProp properties = memory_of(sides[1]);
  const size_t piece = least_piece(properties);
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle memory = 0;
  CU(cuMemAddressReserve(&range, piece, 0, 0, 0));
  CU(cuMemCreate(&memory, piece, &properties, 0));
  CU(cuMemMap(range, piece, 0, memory, 0));
  const CUmemAccessDesc both[] = {access_of(sides[1], CU_MEM_ACCESS_FLAGS_PROT_READWRITE), access_of(sides[0], CU_MEM_ACCESS_FLAGS_PROT_READWRITE)};
  CU(cuMemSetAccess(range, piece, both, 2));
  CU(cuMemRelease(memory));
  return range;
}

// Memory that the program maps by itself, on the second device, for both.
void peer_mappings(Sides& sides) {
  if (!are_peers(sides)) return;
  sides[1].use();
  const CUmemAllocationProp properties = memory_of(sides[1]);
  const size_t piece = least_piece(properties);
  CUdeviceptr range = 0;
  std::array<CUmemGenericAllocationHandle, 2> memory{};
  CU(cuMemAddressReserve(&range, 2 * piece, 0, 0, 0));
  for (unsigned i = 0; i < 2; ++i) {
    CU(cuMemCreate(&memory[i], piece, &properties, 0));
    CU(cuMemMap(range + i * piece, piece, 0, memory[i], 0));
  }
  const CUmemAccessDesc both[] = {access_of(sides[1], CU_MEM_ACCESS_FLAGS_PROT_READWRITE), access_of(sides[0], CU_MEM_ACCESS_FLAGS_PROT_READWRITE)};
  CU(cuMemSetAccess(range, 2 * piece, both, 2));
  for (const Side& side : sides) {
    unsigned long long flags = 0;
    const CUmemLocation location = access_of(side, CU_MEM_ACCESS_FLAGS_PROT_NONE).location;
    CU(cuMemGetAccess(&flags, &location, range));
    require(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "a device that was given access is told to have none");
  }
  const CUdeviceptr middle = range + piece - kBytes / 2 / 512 * 512;  // words in both pieces
  require_written_by(sides[0], sides[1], middle, 3, "a kernel of the other device over two mappings");
  sides[0].use();
  CU(cuMemcpyDtoDAsync(sides[0].data, middle, kBytes, sides[0].stream));
  CU(cuStreamSynchronize(sides[0].stream));
  require_index(sides[0].read(sides[0].data), 3, "a copy over two mappings of the other device's");
  // Taken away from the one, the other has it.
  const CUmemAccessDesc none = access_of(sides[0], CU_MEM_ACCESS_FLAGS_PROT_NONE);
  CU(cuMemSetAccess(range, 2 * piece, &none, 1));
  unsigned long long flags = 99;
  CU(cuMemGetAccess(&flags, &none.location, range));
  require(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE, "a device whose access was taken away is told to have it");
  require_written_by(sides[1], sides[1], middle, 5, "the memory's own device");
  CU(cuMemSetAccess(range, 2 * piece, &both[1], 1));
  require_written_by(sides[0], sides[1], middle, 7, "access that was given anew");
  // Other memory at the same addresses.
  sides[1].use();
  CU(cuCtxSynchronize());
  CU(cuMemUnmap(range, 2 * piece));
  for (unsigned i = 0; i < 2; ++i) CU(cuMemMap(range + i * piece, piece, 0, memory[1 - i], 0));
  CU(cuMemSetAccess(range, 2 * piece, both, 2));
  require_written_by(sides[0], sides[1], middle, 9, "memory that was mapped the other way round");
  CU(cuMemUnmap(range, 2 * piece));
  for (const CUmemGenericAllocationHandle handle : memory) CU(cuMemRelease(handle));
  CU(cuMemAddressFree(range, 2 * piece));
}

// The same memory at addresses that were reserved while the other device was current, for that device alone, as NCCL does in one process.
void peer_aliases(Sides& sides) {
  if (!are_peers(sides)) return;
  const CUmemAllocationProp properties = memory_of(sides[1]);
  const size_t piece = least_piece(properties);
  CUmemGenericAllocationHandle memory = 0;
  CUdeviceptr ranges[2] = {};
  sides[1].use();
  CU(cuMemCreate(&memory, piece, &properties, 0));
  for (int i : {0, 1}) {
    sides[i].use();
    CU(cuMemAddressReserve(&ranges[i], piece, 0, 0, 0));
    CU(cuMemMap(ranges[i], piece, 0, memory, 0));
    const CUmemAccessDesc access = access_of(sides[i], CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CU(cuMemSetAccess(ranges[i], piece, &access, 1));
  }
  CUmemAllocationProp told{};
  CUmemGenericAllocationHandle retained = 0;
  CU(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(ranges[0])));
  CU(cuMemGetAllocationPropertiesFromHandle(&told, retained));
  require(told.location.id == sides[1].device, "memory is told to be on another device than the one that has it");
  CU(cuMemRelease(retained));
  require(cuMemMap(ranges[0], piece, 0, memory, 0) == CUDA_ERROR_INVALID_VALUE, "memory is mapped over other memory");
  CU(cuMemRelease(memory));
  require_written_by(sides[0], sides[0], ranges[0], 11, "the device whose addresses they are");
  sides[1].use();
  require_index(sides[1].read(ranges[1]), 11, "the memory's own device");
  require_written_by(sides[1], sides[1], ranges[1], 12, "the memory's own device, then");
  sides[0].use();
  require_index(sides[0].read(ranges[0]), 12, "the device whose addresses they are, then");
  for (int i : {0, 1}) {
    sides[i].use();
    CU(cuMemUnmap(ranges[i], piece));
    CU(cuMemAddressFree(ranges[i], piece));
  }
}

// Memory of the second device's pool, for both.
void peer_pools(Sides& sides) {
  if (!are_peers(sides)) return;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {sides[1].device}};
  CUmemoryPool pool = nullptr;
  sides[1].use();
  CU(cuMemPoolCreate(&pool, &properties));
  CUmemLocation first = access_of(sides[0], CU_MEM_ACCESS_FLAGS_PROT_NONE).location;
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CU(cuMemPoolGetAccess(&flags, pool, &first));
  require(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE, "a pool is reached by another device from the beginning");
  CUdeviceptr before = 0, later = 0;
  CU(cuMemAllocFromPoolAsync(&before, kBytes, pool, sides[1].stream));
  CU(cuStreamSynchronize(sides[1].stream));
  const CUmemAccessDesc access = access_of(sides[0], CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CU(cuMemPoolSetAccess(pool, &access, 1));
  CU(cuMemPoolSetAccess(pool, &access, 1));
  CU(cuMemPoolGetAccess(&flags, pool, &first));
  require(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "a pool's access is told to be none");
  require_written_by(sides[0], sides[1], before, 3, "a pool's memory that was there");
  CU(cuMemAllocFromPoolAsync(&later, std::size_t{70} << 20, pool, sides[1].stream));
  CU(cuStreamSynchronize(sides[1].stream));
  require_written_by(sides[0], sides[1], later, 5, "a pool's memory that came later");
  CU(cuMemcpyAsync(sides[0].data, later, kBytes, sides[0].stream));
  CU(cuStreamSynchronize(sides[0].stream));
  sides[0].use();
  require_index(sides[0].read(sides[0].data), 5, "a copy of a pool's memory");
  CU(cuMemFreeAsync(later, sides[1].stream));
  // Copies that wait: behind them the pool gives back what the other device reaches.
  sides[1].use();
  unsigned row[16] = {};
  CUarray array = nullptr;
  const CUDA_ARRAY_DESCRIPTOR shape{std::size(row), 1, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  CU(cuArrayCreate(&array, &shape));
  CUDA_MEMCPY2D box{};
  box.srcMemoryType = CU_MEMORYTYPE_HOST;
  box.srcHost = row;
  box.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  box.dstArray = array;
  box.WidthInBytes = box.srcPitch = sizeof row;
  box.Height = 1;
  for (int round = 0; round < 10; ++round) {
    CUdeviceptr several[3] = {};  // one piece of memory the library keeps
    for (CUdeviceptr& one : several) CU(cuMemAllocFromPoolAsync(&one, std::size_t{70} << 20, pool, sides[1].stream));
    for (const CUdeviceptr one : several) CU(cuMemFreeAsync(one, sides[1].stream));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    row[15] = static_cast<unsigned>(round) + 1;
    CU(cuMemcpy2D(&box));
  }
  unsigned last = 0;
  CU(cuMemcpyAtoH(&last, array, sizeof row - sizeof last, sizeof last));
  require(last == 10, "a copy into an array is wrong");
  CU(cuArrayDestroy(array));
  CU(cuMemFreeAsync(before, sides[1].stream));
  const CUmemAccessDesc none = access_of(sides[0], CU_MEM_ACCESS_FLAGS_PROT_NONE);
  CU(cuMemPoolSetAccess(pool, &none, 1));
  CU(cuMemPoolGetAccess(&flags, pool, &first));
  require(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE, "a pool's access that was taken away is told to be there");
  const CUmemAccessDesc own = access_of(sides[1], CU_MEM_ACCESS_FLAGS_PROT_NONE);
  CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuMemPoolSetAccess(pool, &own, 1));
  CU(cuStreamSynchronize(sides[1].stream));
  CU(cuMemPoolDestroy(pool));
}

}  // namespace mpsshim::test
