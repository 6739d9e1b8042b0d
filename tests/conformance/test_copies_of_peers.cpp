// SPDX-License-Identifier: Apache-2.0
// Copies between contexts of one device, and the fills that name a stream.
#include <vector>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

TEST_CASE("copies between contexts of one device are copies", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no peers");
  const DeviceContext context;
  const DeviceArray<unsigned> from(256), to(256);
  const CUstream stream = new_stream();
  OK(CU(cuMemsetD32)(from.address(), 7, 256));
  OK(CU(cuCtxSynchronize)());
  OK(CU(cuMemcpyPeer)(to.address(), context.handle(), from.address(), context.handle(), 512));
  OK(CU(cuCtxSynchronize)());
  CHECK(to[127] == 7);
  CHECK(to[128] == 0);
  OK(CU(cuMemcpyPeerAsync)(to.address() + 512, context.handle(), from.address(), context.handle(), 256, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(to[191] == 7);
  CHECK(to[192] == 0);

  CUDA_MEMCPY3D_PEER box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcContext = box.dstContext = context.handle();
  box.srcDevice = from.address();
  box.dstDevice = to.address() + 768;
  box.srcPitch = box.dstPitch = 64;
  box.srcHeight = box.dstHeight = 4;
  box.WidthInBytes = 32;
  box.Height = 2;
  box.Depth = 1;
  OK(CU(cuMemcpy3DPeer)(&box));
  OK(CU(cuCtxSynchronize)());
  CHECK(to[192] == 7);
  CHECK(to[200] == 0);
  CHECK(to[208] == 7);
  CHECK(to[216] == 0);
  box.dstDevice += 32;
  OK(CU(cuMemcpy3DPeerAsync)(&box, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(to[200] == 7);
  if (driver_kind() != DriverKind::real) CHECK(CU(cuMemcpy3DPeer)(nullptr) == CUDA_ERROR_INVALID_VALUE);  // which reads what is not there
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("fills of a stream, by size of element and by rows", "[forwarded]") {
  const DeviceContext context;
  const DeviceArray<unsigned> array(256);
  const CUstream stream = new_stream();
  OK(CU(cuMemsetD16Async)(array.address(), 0x0101, 4, stream));
  OK(CU(cuMemsetD2D8Async)(array.address() + 256, 64, 2, 4, 2, stream));
  OK(CU(cuMemsetD2D16Async)(array.address() + 512, 64, 0x0303, 2, 2, stream));
  OK(CU(cuMemsetD2D32Async)(array.address() + 768, 64, 0x04040404, 1, 2, stream));
  OK(CU(cuStreamSynchronize)(stream));
  const auto word = [&](size_t byte) { return array[byte / 4]; };
  CHECK((word(0) == 0x01010101 && word(4) == 0x01010101 && word(8) == 0));
  CHECK((word(256) == 0x02020202 && word(260) == 0 && word(320) == 0x02020202 && word(384) == 0));
  CHECK((word(512) == 0x03030303 && word(516) == 0 && word(576) == 0x03030303 && word(640) == 0));
  CHECK((word(768) == 0x04040404 && word(772) == 0 && word(832) == 0x04040404 && word(896) == 0));
  OK(CU(cuMemsetD2D8)(array.address(), 64, 5, 4, 1));
  OK(CU(cuCtxSynchronize)());
  CHECK((word(0) == 0x05050505 && word(4) == 0x01010101));
  CHECK(CU(cuMemsetD16Async)(array.address() + 1, 1, 1, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemsetD2D32Async)(array.address(), 2, 1, 1, 2, stream) == CUDA_ERROR_INVALID_VALUE);  // the pitch is no word's
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("page-locked memory by the short call", "[forwarded]") {
  const DeviceContext context;
  void* pinned = nullptr;
  OK(CU(cuMemAllocHost)(&pinned, 4096));
  unsigned flags = 0;
  OK(CU(cuMemHostGetFlags)(&flags, pinned));
  CHECK((flags & CU_MEMHOSTALLOC_DEVICEMAP) != 0);
  OK(CU(cuMemsetD8)(reinterpret_cast<CUdeviceptr>(pinned), 9, 4096));
  OK(CU(cuCtxSynchronize)());
  CHECK(static_cast<unsigned char*>(pinned)[4095] == 9);
  OK(CU(cuMemFreeHost)(pinned));
  CHECK(CU(cuMemAllocHost)(nullptr, 4096) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("what a stream says of itself", "[forwarded]") {
  const DeviceContext context;
  const CUstream one = new_stream(), other = new_stream();
  unsigned long long first = 0, second = 0;
  OK(CU(cuStreamGetId)(one, &first));
  OK(CU(cuStreamGetId)(other, &second));
  CHECK(first != second);
  CUcontext owner = nullptr;
  OK((driver_symbol<CUresult (*)(CUstream, CUcontext*)>("cuStreamGetCtx")(one, &owner)));
  CHECK(owner == context.handle());
  if (!is_cpu_driver()) {
    CUgreenCtx green = reinterpret_cast<CUgreenCtx>(1);
    owner = nullptr;
    OK((driver_symbol<CUresult (*)(CUstream, CUcontext*, CUgreenCtx*)>("cuStreamGetCtx_v2")(one, &owner, &green)));
    CHECK(owner == context.handle());
    CHECK(green == nullptr);
    int version = 0;
    OK(CU(cuDriverGetVersion)(&version));
    CUdevice device = 99;
    if (version >= 12080) OK((driver_symbol<CUresult (*)(CUstream, CUdevice*)>("cuStreamGetDevice")(one, &device)));
    if (version >= 12080) CHECK(device == 0);
  }
  for (const CUstream stream : {one, other}) OK(CU(cuStreamDestroy)(stream));
}
