// SPDX-License-Identifier: Apache-2.0
// Memory of one device reached from the other: what is enabled, what is not, and copies.
#include <thread>

#include "tests/process/programs/two_devices.hpp"

namespace mpsshim::test {

namespace {

void enable(const Side& from, const Side& to) {
  from.use();
  CU(cuCtxEnablePeerAccess(to.context, 0));
}
void disable(const Side& from, const Side& to) {
  from.use();
  CU(cuCtxDisablePeerAccess(to.context));
}

CUdeviceptr allocate(const Side& side, std::size_t bytes = kBytes) {
  side.use();
  CUdeviceptr memory = 0;
  CU(cuMemAlloc(&memory, bytes));
  return memory;
}

}  // namespace

void peer_answers(Sides& sides) {
  int value = -1;
  CU(cuDeviceCanAccessPeer(&value, sides[0].device, sides[0].device));
  require(value == 0, "a device is its own peer");
  CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&value, sides[0].device, 99));
  CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, sides[0].device, sides[0].device));
  CU(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, sides[0].device, sides[1].device));
  require((value != 0) == are_peers(sides), "an attribute says otherwise than cuDeviceCanAccessPeer");
  sides[0].use();
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxEnablePeerAccess(sides[1].context, 1));
  CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(nullptr, 0));
  CU_GIVES(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(sides[0].context, 0));
  CU_GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(sides[1].context));
  if (!are_peers(sides)) return CU_GIVES(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(sides[1].context, 0));
  CU(cuCtxEnablePeerAccess(sides[1].context, 0));
  CU_GIVES(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(sides[1].context, 0));
  sides[1].use();
  CU_GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(sides[0].context));  // each direction by itself
  disable(sides[0], sides[1]);
  CU_GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(sides[1].context));
  enable(sides[0], sides[1]);
}

void peers(Sides& sides) {
  if (!are_peers(sides)) return;
  const CUdeviceptr before = allocate(sides[1]);
  enable(sides[0], sides[1]);
  require_written_by(sides[0], sides[1], before, 3, "memory that was there when access was enabled");
  require_written_by(sides[0], sides[1], sides[1].data, 5, "a module's user's memory");
  const CUdeviceptr later = allocate(sides[1]);
  require_written_by(sides[0], sides[1], later, 7, "memory that was allocated later");
  const CUdeviceptr large = allocate(sides[1], std::size_t{100} << 20);
  require_written_by(sides[0], sides[1], large + (std::size_t{99} << 20), 11, "a large allocation");
  // Fills, and words that streams wait for and write.
  sides[0].use();
  CU(cuMemsetD32(later, 21, kWords));
  CU(cuCtxSynchronize());
  sides[1].use();
  require_all(sides[1].read(later), 21, "a fill of the peer's memory");
  CU(cuMemsetD32Async(later, 22, kWords, sides[0].stream));
  CU(cuStreamWriteValue32(sides[0].stream, before, 99, 0));
  CU(cuStreamWaitValue32(sides[1].stream, before, 99, CU_STREAM_WAIT_VALUE_GEQ));
  sides[1].launch_add(later, 1);
  CU(cuStreamSynchronize(sides[1].stream));
  require_all(sides[1].read(later), 23, "work behind a word that the other device has written");
  // The same address is the owner's in every question.
  int ordinal = -1;
  sides[0].use();
  CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, later));
  require(ordinal == sides[1].device, "a peer's memory is told to be this device's");
  // Freed and made again, over and over.
  for (unsigned round = 1; round <= 20; ++round) {
    const CUdeviceptr memory = allocate(sides[1], std::size_t{round} << 20);
    require_written_by(sides[0], sides[1], memory, round, "memory that comes and goes");
    sides[round % 2].use();
    CU(cuMemFree(memory));
  }
  for (const CUdeviceptr memory : {before, later, large}) CU(cuMemFree(memory));
  disable(sides[0], sides[1]);
  sides[0].use();
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(sides[1].data, 1, kWords));
  enable(sides[0], sides[1]);
  enable(sides[1], sides[0]);
  require_written_by(sides[0], sides[1], sides[1].data, 13, "access that was enabled anew");
  require_written_by(sides[1], sides[0], sides[0].data, 17, "access in the other direction");
}

// Each device's threads enable, use and disable access to the other by themselves, while both allocate. Natively a copy of one thread ends with an
// illegal address where another one takes the access away.
void peer_threads(Sides& sides) {
  if (!are_peers(sides)) return;
  for (unsigned i = 0; i < 2; ++i) {
    sides[i].use();
    CU(cuMemsetD32(sides[i].data, 40 + i, kWords));
    CU(cuCtxSynchronize());
  }
  std::array<std::string, 4> faults;
  std::vector<std::thread> all;
  for (unsigned t = 0; t < faults.size(); ++t) {
    all.emplace_back([&, t] {
      try {
        const Side &side = sides[t % 2], &other = sides[1 - t % 2];
        Side own = side;
        own.use();
        CU(cuStreamCreate(&own.stream, CU_STREAM_NON_BLOCKING));
        for (unsigned round = 0; round < 25; ++round) {
          if (t < 2) CU(cuCtxEnablePeerAccess(other.context, 0));
          CUdeviceptr words = 0;
          CU(cuMemAlloc(&words, kBytes + (std::size_t{round} << 21)));
          CU(cuMemcpyDtoDAsync(words, other.data, kBytes, own.stream));  // with access, and without
          own.launch_add(words, round);
          CU(cuStreamSynchronize(own.stream));
          require_all(own.read(words), 41 - t % 2 + round, "the other device's words");
          CU(cuMemFree(words));
          if (t < 2) CU(cuCtxDisablePeerAccess(other.context));
        }
        CU(cuStreamDestroy(own.stream));
      } catch (const std::exception& fault) {
        faults[t] = fault.what();
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  for (const std::string& fault : faults) require(fault.empty(), fault);
}

// The device that had the fault reaches nothing more and the other one goes on. Natively no context of the process can be used any more.
void peer_fault(Sides& sides) {
  if (!are_peers(sides)) return;
  enable(sides[0], sides[1]);
  enable(sides[1], sides[0]);
  sides[1].launch_fill(0x10, 1);
  const CUresult error = cuStreamSynchronize(sides[1].stream);
  require(error == CUDA_ERROR_ILLEGAL_ADDRESS, "a fault gives " + describe(error));
  for (unsigned round = 1; round <= 5; ++round) {
    const CUdeviceptr memory = allocate(sides[0], std::size_t{70} << 20);
    require_written_by(sides[0], sides[0], memory, round, "memory of the device that had no fault");
    CU(cuMemFree(memory));
  }
  disable(sides[0], sides[1]);
  require_written_by(sides[0], sides[0], sides[0].data, 9, "the device that had no fault");
}

void peer_copies(Sides& sides) {
  const bool has_access = are_peers(sides);
  if (has_access) enable(sides[0], sides[1]);
  const CUdeviceptr second = allocate(sides[1]);
  sides[0].use();
  for (unsigned factor = 1; factor <= 12; ++factor) {
    sides[0].use();
    sides[0].launch_fill(sides[0].data, factor);
    if (factor % 4 == 0) CU(cuMemcpyPeerAsync(second, sides[1].context, sides[0].data, sides[0].context, kBytes, sides[0].stream));
    if (factor % 4 == 1) CU(cuMemcpyDtoDAsync(second, sides[0].data, kBytes, sides[0].stream));
    if (factor % 4 == 2) CU(cuMemcpyAsync(second, sides[0].data, kBytes, sides[0].stream));
    CU(cuStreamSynchronize(sides[0].stream));
    if (factor % 4 == 3) CU(cuMemcpy(second, sides[0].data, kBytes));
    sides[1].use();
    require_index(sides[1].read(second), factor, "a copy to the peer");
    CU(cuMemsetD32(sides[1].data, factor, kWords));
    CU(cuCtxSynchronize());
    // In the stream of the device that has not enabled anything.
    CU(cuMemcpyPeerAsync(sides[0].data, sides[0].context, sides[1].data, sides[1].context, kBytes, sides[1].stream));
    CU(cuStreamSynchronize(sides[1].stream));
    sides[0].use();
    require_all(sides[0].read(sides[0].data), factor, "a copy from the peer");
  }
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyPeer(second, sides[1].context, sides[0].data, sides[0].context, std::size_t{1} << 40));
  if (!has_access) return;
  // Every other row of a box.
  constexpr std::size_t kRow = 1000, kRows = kBytes / kRow / 2;
  CU(cuMemsetD32(sides[0].data, 0x05050505, kWords));
  CU(cuMemsetD32(second, 0, kWords));
  CU(cuCtxSynchronize());
  CUDA_MEMCPY3D_PEER box{};
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = sides[0].data;
  box.srcContext = sides[0].context;
  box.srcPitch = kRow;
  box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.dstDevice = second;
  box.dstContext = sides[1].context;
  box.dstPitch = 2 * kRow;
  box.WidthInBytes = kRow;
  box.Height = kRows;
  box.Depth = 1;
  for (const bool waits : {true, false}) {
    if (waits) CU(cuMemcpy3DPeer(&box));
    if (!waits) CU(cuMemcpy3DPeerAsync(&box, sides[0].stream));
    CU(cuStreamSynchronize(sides[0].stream));
    sides[1].use();
    CU(cuCtxSynchronize());
    const std::vector<unsigned> words = sides[1].read(second);
    for (std::size_t i = 0; i < words.size(); ++i) {
      const bool is_copied = i * sizeof(unsigned) / kRow % 2 == 0;
      require(words[i] == (is_copied ? 0x05050505 : 0), "a box that was copied to the peer");
    }
    sides[0].use();
    CU(cuMemsetD32(second, 0, kWords));
    CU(cuCtxSynchronize());
  }
}

}  // namespace mpsshim::test
