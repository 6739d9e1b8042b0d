// SPDX-License-Identifier: Apache-2.0
// The oracle of wire tests and fuzzers finds what it is there for: each address, pitch, offset and size of each call that is made wrong.
#include "tests/wire/support/address_oracle.hpp"

#include <string>
#include <utility>
#include <vector>

#include "broker/progress_table.hpp"
#include "proto/channel.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/oracle_scene.hpp"

namespace mpsshim::test {
namespace {

CUDA_MEMCPY3D box(CUarray array) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = kOwn;
  copy.srcPitch = 64;
  copy.srcHeight = 16;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = 64;
  copy.Height = 16;
  copy.Depth = 1;
  return copy;
}

}  // namespace

TEST_CASE("linear copies and fills: each address and each size is asked about") {
  OracleScene f;
  constexpr CUstream kStream = nullptr;
  for (const std::uint64_t bad : {kForeign, kOwn + kBytes, kOwn - 1, kOwn + 1, std::uint64_t{0}, ~std::uint64_t{0}}) {
    CHECK_FALSE(Call<&DriverTable::cuMemcpyDtoDAsync_v2>::is_right(f, bad, kOwn, kBytes, kStream));
    CHECK_FALSE(Call<&DriverTable::cuMemcpyDtoDAsync_v2>::is_right(f, kOwn, bad, kBytes, kStream));
    CHECK_FALSE(Call<&DriverTable::cuMemcpyAsync>::is_right(f, bad, kOwn, kBytes, kStream));
    CHECK_FALSE(Call<&DriverTable::cuMemcpyAsync>::is_right(f, kOwn, bad, kBytes, kStream));
    CHECK_FALSE(Call<&DriverTable::cuMemcpyHtoDAsync_v2>::is_right(f, bad, pointer(kPinned), kBytes, kStream));
    CHECK_FALSE(Call<&DriverTable::cuMemcpyHtoDAsync_v2>::is_right(f, kOwn, pointer(bad), kBytes, kStream));
    CHECK_FALSE(Call<&DriverTable::cuMemcpyDtoHAsync_v2>::is_right(f, pointer(bad), kOwn, kBytes, kStream));
    CHECK_FALSE(Call<&DriverTable::cuMemcpyDtoHAsync_v2>::is_right(f, pointer(kPinned), bad, kBytes, kStream));
    CHECK_FALSE(Call<&DriverTable::cuMemsetD16Async>::is_right(f, bad == kForeign ? kOwn + kBytes : bad, 0, kBytes / 2, kStream));
  }
  CHECK(Call<&DriverTable::cuMemcpyDtoDAsync_v2>::is_right(f, kOwn, kOwn, kBytes, kStream));
  CHECK(Call<&DriverTable::cuMemcpyAsync>::is_right(f, kOwn, kPinned, kBytes, kStream));
  CHECK(Call<&DriverTable::cuMemcpyHtoDAsync_v2>::is_right(f, kOwn, pointer(kPinned), kBytes, kStream));
  CHECK(Call<&DriverTable::cuMemcpyDtoHAsync_v2>::is_right(f, pointer(kPinned), kOwn, kBytes, kStream));
  CHECK_FALSE(Call<&DriverTable::cuMemcpyDtoDAsync_v2>::is_right(f, kOwn, kOwn, kBytes + 1, kStream));
  CHECK(Call<&DriverTable::cuMemsetD8Async>::is_right(f, kOwn, 0, kBytes, kStream));
  CHECK_FALSE(Call<&DriverTable::cuMemsetD8Async>::is_right(f, kOwn, 0, kBytes + 1, kStream));
  CHECK(Call<&DriverTable::cuMemsetD32Async>::is_right(f, kOwn, 0, kBytes / 4, kStream));
  CHECK_FALSE(Call<&DriverTable::cuMemsetD32Async>::is_right(f, kOwn, 0, kBytes, kStream));
  CHECK_FALSE(Call<&DriverTable::cuMemsetD32Async>::is_right(f, kOwn, 0, (1ull << 62) + 1, kStream));
  CHECK(Call<&DriverTable::cuMemsetD2D32Async>::is_right(f, kOwn, 1024, 0, 256, 4, kStream));
  CHECK_FALSE(Call<&DriverTable::cuMemsetD2D32Async>::is_right(f, kOwn, 1024, 0, 256, 5, kStream));
  CHECK_FALSE(Call<&DriverTable::cuMemsetD2D16Async>::is_right(f, kOwn, 511, 0, 256, 2, kStream));
  CHECK_FALSE(Call<&DriverTable::cuMemsetD2D8Async>::is_right(f, kOwn, 1ull << 63, 0, 1, 3, kStream));
  f.oracle.act_as(2);
  CHECK_FALSE(Call<&DriverTable::cuMemsetD8Async>::is_right(f, kOwn, 0, kBytes, kStream));
  CHECK(Call<&DriverTable::cuMemsetD8Async>::is_right(f, kForeign, 0, kBytes, kStream));
}

TEST_CASE("boxes: each field that moves an end is asked about") {
  OracleScene f;
  const auto is_right = [&](auto change) {
    CUDA_MEMCPY3D copy = box(f.array);
    change(copy);
    const bool stream_says = Call<&DriverTable::cuMemcpy3DAsync_v2>::is_right(f, &copy, nullptr);
    const bool node_says = Call<&DriverTable::cuGraphAddMemcpyNode>::is_right(f, nullptr, nullptr, nullptr, 0u, &copy, nullptr);
    CHECK(stream_says == node_says);
    CHECK(stream_says == Call<&DriverTable::cuGraphExecMemcpyNodeSetParams>::is_right(f, nullptr, nullptr, &copy, nullptr));
    return stream_says;
  };
  CHECK(is_right([](CUDA_MEMCPY3D&) {}));
  CHECK(is_right([](CUDA_MEMCPY3D& copy) { copy.srcY = kBytes / 64 - 16; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.srcY = kBytes / 64 - 15; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.srcXInBytes = 1; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.srcZ = 4; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.srcZ = ~0ull; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.srcPitch = 63; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.srcPitch = kBytes; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.srcPitch = ~0ull; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.srcDevice = kForeign + 4096 - 64; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.srcMemoryType = CU_MEMORYTYPE_HOST; }));  // from nowhere
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.srcLOD = 1; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.dstXInBytes = 1; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.dstY = 1; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.dstZ = 1; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.dstArray = nullptr; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.WidthInBytes = 65; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.Height = 17; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.Depth = 2; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) { copy.Depth = 0; }));
  CHECK_FALSE(is_right([](CUDA_MEMCPY3D& copy) {  // from one session to another
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = kForeign;
    copy.dstPitch = 64;
  }));
  CHECK(is_right([](CUDA_MEMCPY3D& copy) {
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = pointer(kPinned);
    copy.dstPitch = 64;
  }));

  CUDA_MEMCPY2D plane{};
  plane.srcMemoryType = plane.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  plane.srcDevice = plane.dstDevice = kOwn;
  plane.srcPitch = plane.dstPitch = 64;
  plane.WidthInBytes = 64;
  plane.Height = 64;
  CHECK(Call<&DriverTable::cuMemcpy2DAsync_v2>::is_right(f, &plane, nullptr));
  for (auto field : {&CUDA_MEMCPY2D::srcXInBytes, &CUDA_MEMCPY2D::srcY, &CUDA_MEMCPY2D::srcPitch, &CUDA_MEMCPY2D::dstXInBytes, &CUDA_MEMCPY2D::dstY,
                     &CUDA_MEMCPY2D::dstPitch, &CUDA_MEMCPY2D::Height}) {
    CUDA_MEMCPY2D wrong = plane;
    wrong.*field += 1;
    CHECK_FALSE(Call<&DriverTable::cuMemcpy2DAsync_v2>::is_right(f, &wrong, nullptr));
  }
}

TEST_CASE("other structures with addresses, words, mappings and registrations") {
  OracleScene f;
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = kOwn;
  fill.elementSize = 4;
  fill.width = kBytes / 4;
  fill.height = 1;
  CHECK(Call<&DriverTable::cuGraphAddMemsetNode>::is_right(f, nullptr, nullptr, nullptr, 0u, &fill, nullptr));
  fill.width += 1;
  CHECK_FALSE(Call<&DriverTable::cuGraphAddMemsetNode>::is_right(f, nullptr, nullptr, nullptr, 0u, &fill, nullptr));
  CHECK_FALSE(Call<&DriverTable::cuGraphExecMemsetNodeSetParams>::is_right(f, nullptr, nullptr, &fill, nullptr));
  CUgraphNodeParams node{};
  node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  CHECK_FALSE(Call<&DriverTable::cuGraphAddNode_v2>::is_right(f, nullptr, nullptr, nullptr, nullptr, 0u, &node));

  CUDA_RESOURCE_DESC texels{};
  texels.resType = CU_RESOURCE_TYPE_LINEAR;
  texels.res.linear.devPtr = kOwn + kBytes - 1;
  texels.res.linear.sizeInBytes = kLeaseBytes - kBytes + 1;
  CHECK(Call<&DriverTable::cuTexObjectCreate>::is_right(f, nullptr, &texels, nullptr, nullptr));
  texels.res.linear.sizeInBytes += 1;
  CHECK_FALSE(Call<&DriverTable::cuTexObjectCreate>::is_right(f, nullptr, &texels, nullptr, nullptr));
  texels.res.linear.devPtr = kOwn + kBytes;
  texels.res.linear.sizeInBytes = 1;
  CHECK_FALSE(Call<&DriverTable::cuSurfObjectCreate>::is_right(f, nullptr, &texels));
  CHECK(Call<&DriverTable::cuTexRefSetAddress_v2>::is_right(f, nullptr, nullptr, kOwn, kBytes));
  CHECK_FALSE(Call<&DriverTable::cuTexRefSetAddress_v2>::is_right(f, nullptr, nullptr, kOwn, kBytes + 1));
  const CUDA_ARRAY_DESCRIPTOR rows{16, 64, CU_AD_FORMAT_FLOAT, 1};
  CHECK(Call<&DriverTable::cuTexRefSetAddress2D_v3>::is_right(f, nullptr, &rows, kOwn, 64));
  CHECK_FALSE(Call<&DriverTable::cuTexRefSetAddress2D_v3>::is_right(f, nullptr, &rows, kOwn, 65));

  CUstreamBatchMemOpParams operation{};
  operation.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  operation.writeValue.address = kOwn + kBytes - 8;
  CHECK(Call<&DriverTable::cuStreamBatchMemOp_v2>::is_right(f, nullptr, 1u, &operation, 0u));
  operation.writeValue.address += 1;
  CHECK_FALSE(Call<&DriverTable::cuStreamBatchMemOp_v2>::is_right(f, nullptr, 1u, &operation, 0u));
  operation.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = kOwn;
  CHECK_FALSE(Call<&DriverTable::cuStreamBatchMemOp_v2>::is_right(f, nullptr, 1u, &operation, 0u));
  CHECK_FALSE(Call<&DriverTable::cuStreamWriteValue32_v2>::is_right(f, nullptr, kOwn, 0u, 0u));
  constexpr std::uint64_t kTable = 0x7000'0000'0000;  // not the executor's in any lease
  f.oracle.note_registered(kTable, sizeof(broker::ProgressTable));
  CHECK(Call<&DriverTable::cuStreamWriteValue32_v2>::is_right(f, nullptr, kTable, 0u, 0u));
  CHECK_FALSE(Call<&DriverTable::cuMemcpyDtoDAsync_v2>::is_right(f, kTable, kOwn, 8u, nullptr));
  CHECK_FALSE(Call<&DriverTable::cuMemcpyAsync>::is_right(f, kTable, kOwn, 8u, nullptr));  // no probe there
  CHECK(Call<&DriverTable::cuMemcpyAsync>::is_right(f, kTable + offsetof(broker::StreamProgress, probe), kOwn, 8u, nullptr));
  CHECK_FALSE(Call<&DriverTable::cuMemcpyAsync>::is_right(f, kTable + offsetof(broker::StreamProgress, probe), kOwn, 16u, nullptr));

  for (const auto& [address, is_right] : {std::pair{kOwn + kLeaseBytes - kBytes, true}, {kOwn + kLeaseBytes - 1, false}, {kDeviceLease - 1, false}}) {
    CHECK(Call<&DriverTable::cuMemMap>::is_right(f, address, kBytes, 0, CUmemGenericAllocationHandle{}, 0) == is_right);
    CHECK(Call<&DriverTable::cuMemUnmap>::is_right(f, address, kBytes) == is_right);
    CHECK(Call<&DriverTable::cuMemSetAccess>::is_right(f, address, kBytes, nullptr, 0u) == is_right);
    CHECK(Call<&DriverTable::cuMemAddressReserve>::is_right(f, nullptr, kBytes, 0u, address, 0u) == is_right);
    CHECK(Call<&DriverTable::cuMemAddressFree>::is_right(f, address, kBytes) == is_right);
  }
  CHECK(Call<&DriverTable::cuMemHostRegister_v2>::is_right(f, pointer(kPinned + kBytes), kBytes, 0u));
  CHECK_FALSE(Call<&DriverTable::cuMemHostRegister_v2>::is_right(f, pointer(kPinned + kLeaseBytes - 1), kBytes, 0u));
  CHECK_FALSE(Call<&DriverTable::cuMemHostRegister_v2>::is_right(f, pointer(kOwn), kBytes, 0u));
  CHECK(Call<&DriverTable::cuMemHostUnregister>::is_right(f, pointer(kPinned)));
  CHECK_FALSE(Call<&DriverTable::cuMemHostUnregister>::is_right(f, pointer(kPinned + 1)));
  CHECK_FALSE(Call<&DriverTable::cuMemHostGetDevicePointer_v2>::is_right(f, nullptr, pointer(kOwn), 0u));
  CHECK_FALSE(Call<&DriverTable::cuModuleLoadData>::is_right(f, nullptr, pointer(kOwn)));
  CHECK_FALSE(Call<&DriverTable::cuMemcpyDtoH_v2>::is_right(f, pointer(kPinned), kOwn, kBytes));
}

TEST_CASE("textures are of arrays that there are") {
  OracleScene f;
  const auto driver = f.fake.driver();
  const CUDA_ARRAY3D_DESCRIPTOR shape{64, 16, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
  CUDA_RESOURCE_DESC plain{};
  plain.resType = CU_RESOURCE_TYPE_ARRAY;
  plain.res.array.hArray = f.array;
  CUDA_RESOURCE_DESC mipmapped{};
  mipmapped.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  REQUIRE((*driver)->cuMipmappedArrayCreate(&mipmapped.res.mipmap.hMipmappedArray, &shape, 2) == CUDA_SUCCESS);
  const auto is_right = [&](const CUDA_RESOURCE_DESC& resource) {
    return Call<&DriverTable::cuTexObjectCreate>::is_right(f, nullptr, &resource, nullptr, nullptr);
  };
  CHECK(is_right(plain));
  CHECK(is_right(mipmapped));
  REQUIRE((*driver)->cuArrayDestroy(plain.res.array.hArray) == CUDA_SUCCESS);
  REQUIRE((*driver)->cuMipmappedArrayDestroy(mipmapped.res.mipmap.hMipmappedArray) == CUDA_SUCCESS);
  CHECK_FALSE(is_right(plain));
  CHECK_FALSE(is_right(mipmapped));
}

TEST_CASE("a module's variable is one session's until it is taken, and no byte more than itself") {
  OracleScene f;
  constexpr CUstream kStream = nullptr;
  constexpr std::uint64_t kVariable = 0x5'0000'0000;
  const auto may_read = [&](std::uint64_t address, std::uint64_t size_bytes) {
    return Call<&DriverTable::cuMemcpyDtoDAsync_v2>::is_right(f, kOwn, address, size_bytes, kStream);
  };
  CHECK_FALSE(may_read(kVariable, 64));
  f.oracle.give_variable(kVariable, 64, 1);
  f.oracle.give_variable(kVariable + 64, 64, 1);
  CHECK(may_read(kVariable, 64));
  CHECK(may_read(kVariable + 127, 1));
  CHECK_FALSE(may_read(kVariable - 1, 1));
  CHECK_FALSE(may_read(kVariable, 65));  // its neighbour is another
  CHECK_FALSE(may_read(kVariable + 128, 1));
  CHECK_FALSE(Call<&DriverTable::cuMemHostRegister_v2>::is_right(f, pointer(kVariable), 64, 0u));
  f.oracle.give_variable(kVariable, 64, 2);
  CHECK_FALSE(may_read(kVariable, 64));
  f.oracle.take_variable(kVariable);
  CHECK_FALSE(may_read(kVariable, 64));
  CHECK(may_read(kVariable + 64, 64));
}

TEST_CASE("what the driver was given and must not have ends a test: the guard asks before the function") {
  FakeDriver fake;
  DriverTable table;
  static unsigned called = 0;
  table.cuMemsetD8Async = [](CUdeviceptr, unsigned char, std::size_t, CUstream) { return ++called, CUDA_SUCCESS; };
  guard_addresses(table);
  CHECK(table.cuMemsetD8Async(kForeign, 0, 1, nullptr) == CUDA_SUCCESS);
  CHECK(called == 1);
  CHECK(table.cuMemsetD32Async(kForeign, 0, 1, nullptr) == CUDA_ERROR_NOT_SUPPORTED);
  const std::vector<std::string> violations = fake.oracle.take_violations();
  REQUIRE(violations.size() == 2);
  CHECK(violations[0] == "cuMemsetD8Async: dstDevice leaves the memory of clients");
}

}  // namespace mpsshim::test
