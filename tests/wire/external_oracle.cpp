// SPDX-License-Identifier: Apache-2.0
// The oracle of wire tests and fuzzers finds what is wrong with external memory: the descriptor, each part of it, and what is mapped.
#include "proto/segment.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/oracle_scene.hpp"

namespace mpsshim::test {

TEST_CASE("external memory: the descriptor, each part of it, and what is mapped") {
  OracleScene f;
  const proto::FileDescriptor file = proto::create_memory_file("external", kBytes);
  const proto::FileDescriptor executors = proto::create_memory_file("the executor's own", kBytes);
  f.oracle.give_file(file.get(), 1);
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC description{};
  description.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  description.handle.fd = file.get();
  description.size = kBytes;
  const auto may_import = [&](auto change) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC changed = description;
    change(changed);
    return Call<&DriverTable::cuImportExternalMemory>::is_right(f, nullptr, &changed);
  };
  CHECK(may_import([](CUDA_EXTERNAL_MEMORY_HANDLE_DESC&) {}));
  CHECK_FALSE(may_import([](CUDA_EXTERNAL_MEMORY_HANDLE_DESC& changed) { changed.size += 1; }));
  CHECK_FALSE(may_import([](CUDA_EXTERNAL_MEMORY_HANDLE_DESC& changed) { changed.size = 0; }));
  CHECK_FALSE(may_import([&](CUDA_EXTERNAL_MEMORY_HANDLE_DESC& changed) { changed.handle.fd = executors.get(); }));
  CHECK_FALSE(may_import([](CUDA_EXTERNAL_MEMORY_HANDLE_DESC& changed) { changed.handle.fd = -1; }));
  CHECK_FALSE(may_import([](CUDA_EXTERNAL_MEMORY_HANDLE_DESC& changed) { changed.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32; }));
  f.oracle.act_as(2);
  CHECK_FALSE(may_import([](CUDA_EXTERNAL_MEMORY_HANDLE_DESC&) {}));
  f.oracle.act_as(0);

  const auto memory = reinterpret_cast<CUexternalMemory>(0x100);
  const auto may_map = [&](std::uint64_t offset, std::uint64_t size_bytes, CUexternalMemory of) {
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer{};
    buffer.offset = offset;
    buffer.size = size_bytes;
    return Call<&DriverTable::cuExternalMemoryGetMappedBuffer>::is_right(f, nullptr, of, &buffer);
  };
  CHECK_FALSE(may_map(0, kBytes, memory));
  f.oracle.note_imported(memory, description);
  CHECK(may_map(0, kBytes, memory));
  CHECK(may_map(kBytes - 1, 1, memory));
  CHECK_FALSE(may_map(1, kBytes, memory));
  CHECK_FALSE(may_map(0, 0, memory));
  CHECK_FALSE(may_map(~0ull, 2, memory));
  CHECK_FALSE(may_map(2, ~0ull, memory));
  const auto may_map_array = [&](std::uint64_t offset, std::uint64_t width, std::uint64_t height, std::uint64_t depth) {
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC array{};
    array.offset = offset;
    array.arrayDesc = {width, height, depth, CU_AD_FORMAT_FLOAT, 1, 0};
    array.numLevels = 1;
    return Call<&DriverTable::cuExternalMemoryGetMappedMipmappedArray>::is_right(f, nullptr, memory, &array);
  };
  CHECK(may_map_array(0, kBytes / 64, 4, 4));
  CHECK_FALSE(may_map_array(1, kBytes / 64, 4, 4));
  CHECK_FALSE(may_map_array(0, kBytes / 64, 4, 5));
  CHECK_FALSE(may_map_array(~0ull, 1, 0, 0));
  CHECK_FALSE(may_map_array(0, 1ull << 62, 1ull << 62, 1ull << 62));

  const std::uint64_t address = f.oracle.place_external(memory, kBytes);
  const std::uint64_t next = f.oracle.place_external(memory, kBytes);
  REQUIRE(next == address + kBytes);
  CHECK(Call<&DriverTable::cuMemsetD8Async>::is_right(f, address, 0, kBytes, nullptr));
  CHECK_FALSE(Call<&DriverTable::cuMemsetD8Async>::is_right(f, address, 0, kBytes + 1, nullptr));
  CHECK(Call<&DriverTable::cuMemcpyDtoDAsync_v2>::is_right(f, address, kOwn, kBytes, nullptr));
  CHECK_FALSE(Call<&DriverTable::cuMemcpyDtoDAsync_v2>::is_right(f, address, kForeign, kBytes, nullptr));
  CHECK_FALSE(Call<&DriverTable::cuMemcpyDtoH_v2>::is_right(f, pointer(address), kOwn, kBytes));
  CUDA_RESOURCE_DESC texels{};
  texels.resType = CU_RESOURCE_TYPE_LINEAR;
  texels.res.linear.devPtr = address;
  texels.res.linear.sizeInBytes = kBytes;
  CHECK(Call<&DriverTable::cuTexObjectCreate>::is_right(f, nullptr, &texels, nullptr, nullptr));
  texels.res.linear.sizeInBytes += 1;
  CHECK_FALSE(Call<&DriverTable::cuTexObjectCreate>::is_right(f, nullptr, &texels, nullptr, nullptr));

  CHECK_FALSE(Call<&DriverTable::cuMemFree_v2>::is_right(f, address + 1));
  CHECK_FALSE(Call<&DriverTable::cuMemFree_v2>::is_right(f, kOwn));
  f.oracle.act_as(2);
  CHECK_FALSE(Call<&DriverTable::cuMemFree_v2>::is_right(f, address));
  f.oracle.act_as(0);
  CHECK(Call<&DriverTable::cuMemFree_v2>::is_right(f, address));
  f.oracle.note_freed(address);
  CHECK_FALSE(Call<&DriverTable::cuMemFree_v2>::is_right(f, address));
  CHECK_FALSE(Call<&DriverTable::cuMemsetD8Async>::is_right(f, address, 0, 1, nullptr));
  f.oracle.note_destroyed(memory);
  CHECK(f.oracle.take_violations().size() == 1);  // the second buffer is still mapped
}

}  // namespace mpsshim::test
