// SPDX-License-Identifier: Apache-2.0
// For tests of whose memory a record may name: two clients with a chunk each, and the first with pinned memory and an array.
#pragma once

#include <cstdint>
#include <utility>

#include "broker/executor/memory/checked_calls.hpp"
#include "broker/executor/memory/checked_memory.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {

inline constexpr std::uint64_t kChunk = 2u << 20;
inline constexpr std::uint64_t kWidth = 256;  // of the array: bytes
inline constexpr std::uint64_t kHeight = 16;
using Space = proto::MemorySpace;

// What the client is told of a texture over that linear memory; the oracle is asked about one that it may have.
inline CUresult read_texels(const WireExecutor& executor, WireClient& client, std::uint64_t address, std::uint64_t size_bytes) {
  CUDA_RESOURCE_DESC texels{};
  texels.resType = CU_RESOURCE_TYPE_LINEAR;
  texels.res.linear.format = CU_AD_FORMAT_FLOAT;
  texels.res.linear.numChannels = 1;
  texels.res.linear.devPtr = address;
  texels.res.linear.sizeInBytes = size_bytes;
  broker::Checked<broker::CheckedResource> checked = client.session().checked().resource(texels, {});
  if (!checked) return checked.refusal().result;
  CUsurfObject made = 0;
  (void)broker::CheckedCalls(*executor.driver).make_surface(made, *checked);
  return CUDA_SUCCESS;
}

struct ArrayScene {
  WireExecutor executor;
  WireClient client{executor};
  WireClient victim{executor, 2};
  const std::uint64_t own = client.add_chunk(kChunk);
  const std::uint64_t foreign = victim.add_chunk(kChunk);
  const std::uint64_t pinned = kPinnedLease;
  const proto::ArrayId array = client.add_array(1, {kWidth, kHeight, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0});

  ArrayScene() { client.add_segment(proto::SegmentPurpose::pinned, kChunk); }
  ~ArrayScene() { client.release_segments(); }

  // The whole array from, or to, the beginning of linear memory.
  [[nodiscard]] proto::ArrayCopyRecord upload(Space space, std::uint64_t address) const {
    proto::ArrayCopyRecord copy{};
    copy.destination = array.value;
    copy.destination_space = Space::array;
    copy.source = address;
    copy.source_space = space;
    copy.source_pitch = copy.width = kWidth;
    copy.source_rows = copy.height = kHeight;
    copy.depth = 1;
    return copy;
  }
  [[nodiscard]] proto::ArrayCopyRecord download(Space space, std::uint64_t address) const {
    proto::ArrayCopyRecord copy = upload(space, address);
    std::swap(copy.destination, copy.source);
    std::swap(copy.destination_space, copy.source_space);
    std::swap(copy.destination_pitch, copy.source_pitch);
    std::swap(copy.destination_rows, copy.source_rows);
    return copy;
  }

  // Whatever it was answered: nothing has been given to the driver.
  void check_stopped(const proto::ArrayCopyRecord& copy) {
    client.post(copy);
    client.turn();
    CHECK(executor.fake.calls(FakeCall::copy).empty());
    const bool was_told = client.take_async_error() != CUDA_SUCCESS || client.has_failed();
    CHECK(was_told);
  }
};

}  // namespace mpsshim::test
