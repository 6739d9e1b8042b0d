// SPDX-License-Identifier: Apache-2.0
// Two- and three-dimensional copies, pitched allocations and fills.
#include <cstdint>
#include <vector>

#include "driver_under_test.hpp"
#include "volume_copies.hpp"

using namespace mpsshim::test;

TEST_CASE("2D copies move rows and leave what lies between them", "[forwarded]") {
  const DeviceContext context;
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  const Box boxes[] = {
      {{3, 2, 0, 512, 0}, {5, 1, 0, 256, 0}, 100, 30},
      {{0, 0, 0, 200, 0}, {0, 0, 0, 200, 0}, 200, 40},         // one run
      {{0, 0, 0, 4096, 0}, {64, 3, 0, 4096, 0}, 1, 60},        // columns
      {{7, 0, 0, 1000, 0}, {0, 9, 0, 333, 0}, 333, 1},         // a row
      {{0, 0, 0, 600000, 0}, {1, 0, 0, 700000, 0}, 590000, 3}  // rows longer than a piece
  };
  for (const Box& box : boxes) {
    const size_t bytes = box.width > 1000 ? 2200000 : 300000;
    for (const Kind to : kKinds) {
      for (const Kind from : kKinds) {
        check_copy(box, to, from, bytes, [&](Memory& destination, Memory& source) {
          const CUDA_MEMCPY2D copy = plane(box, destination, source);
          OK(CU(cuMemcpy2DUnaligned)(&copy));
          OK(CU(cuCtxSynchronize)());
        });
        check_copy(box, to, from, bytes, [&](Memory& destination, Memory& source) {
          const CUDA_MEMCPY2D copy = plane(box, destination, source);
          OK(CU(cuMemcpy2DAsync)(&copy, stream));
          OK(CU(cuStreamSynchronize)(stream));
        });
      }
    }
  }
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("3D copies move slices", "[forwarded]") {
  const DeviceContext context;
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  const Box boxes[] = {
      {{3, 2, 1, 128, 20}, {5, 1, 2, 256, 16}, 100, 12, 5},
      {{0, 0, 0, 64, 8}, {0, 0, 0, 64, 8}, 64, 8, 10},  // one run
      {{0, 0, 0, 64, 9}, {0, 0, 0, 64, 8}, 64, 8, 10},  // rows touch, slices do not
      {{1, 1, 1, 2048, 4}, {0, 0, 0, 2000, 3}, 2000, 3, 20},
  };
  for (const Box& box : boxes) {
    for (const Kind to : kKinds) {
      for (const Kind from : kKinds) {
        check_copy(box, to, from, 400000, [&](Memory& destination, Memory& source) {
          const CUDA_MEMCPY3D copy = volume(box, destination, source);
          OK(CU(cuMemcpy3D)(&copy));
          OK(CU(cuCtxSynchronize)());
        });
        check_copy(box, to, from, 400000, [&](Memory& destination, Memory& source) {
          const CUDA_MEMCPY3D copy = volume(box, destination, source);
          OK(CU(cuMemcpy3DAsync)(&copy, stream));
          OK(CU(cuStreamSynchronize)(stream));
        });
      }
    }
  }
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a synchronous 2D copy stands between what is before and after it", "[forwarded]") {
  const DeviceContext context;
  constexpr size_t kPitch = 1024, kRows = 512;
  CUdeviceptr device = 0;
  OK(CU(cuMemAlloc)(&device, kPitch * kRows));
  std::vector<unsigned char> rows(64 * kRows), back(64 * kRows);
  for (unsigned round = 1; round < 30; ++round) {
    OK(CU(cuMemsetD8Async)(device, static_cast<unsigned char>(100 + round), kPitch * kRows, nullptr));
    std::fill(rows.begin(), rows.end(), static_cast<unsigned char>(round));
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = rows.data();
    copy.srcPitch = 64;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = device;
    copy.dstPitch = kPitch;
    copy.WidthInBytes = 64;
    copy.Height = kRows;
    OK(CU(cuMemcpy2D)(&copy));
    std::fill(rows.begin(), rows.end(), static_cast<unsigned char>(0xee));  // the source has been read
    CUDA_MEMCPY2D down{};
    down.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    down.srcDevice = device;
    down.srcPitch = kPitch;
    down.dstMemoryType = CU_MEMORYTYPE_HOST;
    down.dstHost = back.data();
    down.dstPitch = 64;
    down.WidthInBytes = 64;
    down.Height = kRows;
    OK(CU(cuMemcpy2D)(&down));
    REQUIRE(back == std::vector<unsigned char>(64 * kRows, static_cast<unsigned char>(round)));
    unsigned char beside = 0;
    OK(CU(cuMemcpyDtoH)(&beside, device + 64, 1));
    REQUIRE(beside == 100 + round);
  }
  OK(CU(cuMemFree)(device));
}

TEST_CASE("2D and 3D copies refuse what is wrong", "[forwarded]") {
  const DeviceContext context;
  Memory device(Kind::device, 65536), host(Kind::pageable, 65536);
  const Box good{{0, 0, 0, 512, 0}, {0, 0, 0, 256, 0}, 100, 30};
  CUDA_MEMCPY2D copy = plane(good, device, host);
  OK(CU(cuMemcpy2D)(&copy));
  if (driver_kind() != DriverKind::real) CHECK(CU(cuMemcpy2D)(nullptr) == CUDA_ERROR_INVALID_VALUE);

  copy.WidthInBytes = 0;
  CHECK(CU(cuMemcpy2D)(&copy) == CUDA_SUCCESS);
  copy = plane(good, device, host);
  copy.dstPitch = 99;  // less than a row
  CHECK(CU(cuMemcpy2D)(&copy) == CUDA_ERROR_INVALID_VALUE);
  copy = plane(good, device, host);
  copy.Height = 200;  // past the device memory's end
  CHECK(CU(cuMemcpy2D)(&copy) == CUDA_ERROR_INVALID_VALUE);
  copy = plane(good, device, host);
  copy.dstDevice = 0x10000;
  CHECK(CU(cuMemcpy2D)(&copy) == CUDA_ERROR_INVALID_VALUE);

  const Box deep{{0, 0, 0, 128, 16}, {0, 0, 0, 128, 16}, 64, 16, 8};
  CUDA_MEMCPY3D slices = volume(deep, device, host);
  OK(CU(cuMemcpy3D)(&slices));
  slices.dstHeight = 8;  // fewer rows than are copied
  CHECK(CU(cuMemcpy3D)(&slices) == CUDA_ERROR_INVALID_VALUE);
  slices = volume(deep, device, host);
  slices.Depth = 5000;
  CHECK(CU(cuMemcpy3D)(&slices) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("pitched allocations hold their rows, 2D fills write them", "[forwarded]") {
  const DeviceContext context;
  CUdeviceptr memory = 0;
  size_t pitch = 0;
  OK(CU(cuMemAllocPitch)(&memory, &pitch, 100 * 4, 50, 4));
  CHECK(pitch >= 400);
  CHECK(pitch % 256 == 0);
  OK(CU(cuMemsetD8)(memory, 0xff, pitch * 50));
  OK(CU(cuMemsetD2D32)(memory, pitch, 0x01020304, 100, 50));
  std::vector<unsigned> rows(pitch / 4 * 50);
  OK(CU(cuMemcpyDtoH)(rows.data(), memory, pitch * 50));
  bool is_right = true;
  for (size_t row = 0; row < 50; ++row) {
    for (size_t column = 0; column < pitch / 4; ++column) is_right &= rows[row * pitch / 4 + column] == (column < 100 ? 0x01020304u : 0xffffffffu);
  }
  CHECK(is_right);
  CHECK(CU(cuMemsetD2D32)(memory, pitch, 0, 100, 5000) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemAllocPitch)(&memory, &pitch, 0, 50, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemAllocPitch)(&memory, &pitch, 400, 50, 3) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(memory));
}

#if CUDA_VERSION >= 13000
TEST_CASE("a batch of copies is as many copies in order", "[forwarded]") {
  const DeviceContext context;
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no batches: they are taken apart in the client");
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  Memory device(Kind::device, 3000), source(Kind::pageable, 3000), back(Kind::pinned, 3000);
  source.set(noise(3000, 3));
  const auto address = [](Memory& memory, size_t at) { return reinterpret_cast<CUdeviceptr>(memory.host()) + at; };
  CUdeviceptr to[] = {device.device(), device.device() + 1000, address(back, 0)};
  CUdeviceptr from[] = {address(source, 1000), address(source, 0), device.device()};
  size_t sizes[] = {1000, 1000, 2000};
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t first = 0;
  OK(CU(cuMemcpyBatchAsync)(to, from, sizes, 3, &attributes, &first, 1, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(std::memcmp(back.host(), source.host() + 1000, 1000) == 0);
  CHECK(std::memcmp(back.host() + 1000, source.host(), 1000) == 0);
  CHECK(CU(cuMemcpyBatchAsync)(to, from, sizes, 3, &attributes, &first, 1, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemcpyBatchAsync)(to, from, sizes, 0, &attributes, &first, 1, stream) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a batch of 3D copies moves boxes between pointers and arrays", "[forwarded]") {
  const DeviceContext context;
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no batches: they are taken apart in the client");
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  constexpr size_t kRow = 64, kHeight = 5, kDepth = 3, kBytes = kRow * kHeight * kDepth;
  Memory device(Kind::device, kBytes), source(Kind::pinned, kBytes), back(Kind::pinned, kBytes), packed(Kind::pinned, kBytes);
  source.set(noise(kBytes, 4));
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  descriptor.Width = 16;  // of four bytes
  descriptor.Height = 8;
  descriptor.Depth = 4;
  descriptor.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  descriptor.NumChannels = 1;
  CUarray array = nullptr;
  OK(CU(cuArray3DCreate)(&array, &descriptor));
  const auto pointer = [](CUdeviceptr address, size_t row, size_t height) {
    CUmemcpy3DOperand operand{};
    operand.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    operand.op.ptr.ptr = address;
    operand.op.ptr.rowLength = row;
    operand.op.ptr.layerHeight = height;
    return operand;
  };
  const auto in_array = [&](size_t x, size_t y, size_t z) {
    CUmemcpy3DOperand operand{};
    operand.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    operand.op.array.array = array;
    operand.op.array.offset = {x, y, z};
    return operand;
  };
  const auto host = [](Memory& memory) { return reinterpret_cast<CUdeviceptr>(memory.host()); };
  const auto in_order = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  const auto run = [&](std::vector<CUDA_MEMCPY3D_BATCH_OP> operations) {
    return driver_symbol<CUresult (*)(size_t, CUDA_MEMCPY3D_BATCH_OP*, unsigned long long, CUstream)>("cuMemcpy3DBatchAsync_v2")(
        operations.size(), operations.data(), 0, stream);
  };
  // All of it to the device; a box of 40 bytes, 3 rows and 2 slices of that back, packed.
  OK(run({{pointer(host(source), 0, 0), pointer(device.device(), kRow, kHeight), {kRow, kHeight, kDepth}, in_order, 0}}));
  OK(run({{pointer(device.device() + 8, kRow, kHeight), pointer(host(packed), 0, 0), {40, 3, 2}, in_order, 0}}));
  OK(CU(cuStreamSynchronize)(stream));
  for (size_t z = 0; z < 2; ++z) {
    for (size_t y = 0; y < 3; ++y) {
      CHECK(std::memcmp(packed.host() + (z * 3 + y) * 40, source.host() + (z * kHeight + y) * kRow + 8, 40) == 0);
    }
  }
  // Into the array, in its elements, and out of it.
  OK(run({{pointer(host(source), 16, kHeight), in_array(2, 1, 1), {14, kHeight, 2}, in_order, 0}}));
  OK(run({{in_array(2, 1, 1), pointer(host(back), 16, kHeight), {14, kHeight, 2}, in_order, 0}}));
  OK(CU(cuStreamSynchronize)(stream));
  for (size_t row = 0; row < kHeight * 2; ++row) CHECK(std::memcmp(back.host() + row * kRow, source.host() + row * kRow, 56) == 0);

  // The first version, which also tells which operation failed.
  CUDA_MEMCPY3D_BATCH_OP one{pointer(host(source), 0, 0), pointer(device.device(), 0, 0), {64, 1, 1}, in_order, 0};
  size_t failed = 77;
  OK(call("cuMemcpy3DBatchAsync", size_t{1}, &one, &failed, 0ULL, stream));
  OK(CU(cuStreamSynchronize)(stream));

  CHECK(run({}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(run({{pointer(host(source), 0, 0), pointer(device.device(), 0, 0), {0, 1, 1}, in_order, 0}}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(run({{pointer(host(source), 8, 0), pointer(device.device(), 0, 0), {16, 1, 1}, in_order, 0}}) == CUDA_ERROR_INVALID_VALUE);
  const auto no_order = static_cast<CUmemcpySrcAccessOrder>(0);
  CHECK(run({{pointer(host(source), 0, 0), pointer(device.device(), 0, 0), {16, 1, 1}, no_order, 0}}) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuArrayDestroy)(array));
  OK(CU(cuStreamDestroy)(stream));
}
#endif
