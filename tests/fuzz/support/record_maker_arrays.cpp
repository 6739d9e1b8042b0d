// SPDX-License-Identifier: Apache-2.0
// Arrays and what reads them.
#include <cuda.h>

#include "tests/fuzz/support/record_maker.hpp"

namespace mpsshim::fuzz {

namespace {

using proto::ArrayKind;
using proto::ArrayObject;
using proto::MemorySpace;

constexpr std::uint32_t kKinds = 5;  // one too many

constexpr CUarray_format kFormats[] = {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_SIGNED_INT16, CU_AD_FORMAT_HALF, CU_AD_FORMAT_FLOAT};

proto::ArrayId array_id(std::uint32_t index) { return proto::ArrayId::make(index, 1); }

}  // namespace

void RecordMaker::add_array_copy(proto::StreamId stream) {
  proto::ArrayCopyRecord copy{};
  const bool is_upload = random_() % 2 == 0;
  copy.destination_space = is_upload ? MemorySpace::array : static_cast<MemorySpace>(random_() % 2);
  copy.source_space = !is_upload || random_() % 8 == 0 ? MemorySpace::array : static_cast<MemorySpace>(random_() % 2);
  if (oddly(64)) copy.destination_space = static_cast<MemorySpace>(random_() % 5);  // neither end, or none
  if (oddly(64)) copy.source_space = static_cast<MemorySpace>(random_() % 5);
  const auto end = [&](MemorySpace in) {
    return in == MemorySpace::array ? proto::ArrayId::make(static_cast<std::uint32_t>(random_() % kArrays), 1).value
                                    : some_place(proto::number_in(in));
  };
  copy.destination = end(copy.destination_space);
  copy.source = end(copy.source_space);
  const auto set_offsets = [&](MemorySpace in, std::uint64_t(&offset)[3]) {
    if (in != MemorySpace::array && oddly(32)) offset[random_() % 3] = random_() % 2 == 0 ? scenery_.foreign_chunk - scenery_.chunk : some_count(4);
    if (in == MemorySpace::array && random_() % 4 == 0) offset[random_() % 3] = some_count(4);
  };
  set_offsets(copy.destination_space, copy.destination_offset);
  set_offsets(copy.source_space, copy.source_offset);
  copy.width = some_count(32);
  copy.height = some_count(4);
  copy.depth = some_count(1);
  copy.destination_pitch = some_count(128);
  copy.source_pitch = some_count(128);
  copy.destination_rows = some_count(16);
  copy.source_rows = some_count(16);
  return add(copy, stream);
}

void RecordMaker::add_array(proto::StreamId stream) {
  switch (random_() % 12) {
    case 0:
    case 1:
    case 2: {
      proto::ArrayCreateRecord create{};
      create.kind = static_cast<ArrayKind>(oddly(32) ? small(kKinds) : small(3));
      create.array = array_id(small(kArrays));
      create.parent = array_id(small(kArrays));
      create.width = oddly(16) ? some_count(64) : 1 + random_() % 64;
      create.height = oddly(16) ? some_count(64) : random_() % 16;
      create.depth = random_() % 4 == 0 ? some_count(8) : 0;
      create.format = static_cast<std::uint32_t>(kFormats[random_() % std::size(kFormats)]);
      create.channels = 1u << random_() % 3;
      create.flags = random_() % 8 == 0 ? small(256) : 0;
      create.number = small(5);
      create.restores = oddly(64);
      return add(create, {});
    }
    case 3:
    case 4: return add_sampler();
    case 5: return add(proto::ArrayObjectDestroyRecord{array_id(small(kArrays)).value, static_cast<ArrayObject>(oddly(64) ? small(4) : 0), 0}, {});
    // Which texture that is, the stage says (executor_stage.cpp).
    case 6:
      return add(
          proto::ArrayObjectDestroyRecord{oddly(16) ? random_() : random_() % 4, small(2) == 0 ? ArrayObject::texture : ArrayObject::surface, 0}, {});
    case 7: return add_external();
    default: return add_array_copy(stream);
  }
}

void RecordMaker::add_sampler() {
  proto::SamplerCreateRecord record{};
  record.array = array_id(small(kArrays));
  record.is_surface = random_() % 4 == 0;
  record.has_view = random_() % 4 == 0;
  CUDA_RESOURCE_DESC resource{};
  resource.resType = static_cast<CUresourcetype>(oddly(16) ? random_() % 6 : random_() % 2);
  if (random_() % 3 == 0) resource.resType = random_() % 2 == 0 ? CU_RESOURCE_TYPE_LINEAR : CU_RESOURCE_TYPE_PITCH2D;
  if (resource.resType == CU_RESOURCE_TYPE_LINEAR) {
    resource.res.linear.devPtr = some_place(random_() % 2);
    resource.res.linear.format = kFormats[random_() % std::size(kFormats)];
    resource.res.linear.numChannels = 1u << random_() % 3;
    resource.res.linear.sizeInBytes = some_count(4096);
  } else if (resource.resType == CU_RESOURCE_TYPE_PITCH2D) {
    resource.res.pitch2D.devPtr = some_place(random_() % 2);
    resource.res.pitch2D.format = kFormats[random_() % std::size(kFormats)];
    resource.res.pitch2D.numChannels = 1u << random_() % 3;
    resource.res.pitch2D.width = some_count(64);
    resource.res.pitch2D.height = some_count(16);
    resource.res.pitch2D.pitchInBytes = some_count(512);
  } else {
    resource.res.array.hArray = reinterpret_cast<CUarray>(random_());  // is not read
  }
  Input trailing;
  append(trailing, resource);
  if (record.is_surface == 0) append(trailing, CUDA_TEXTURE_DESC{});
  if (record.is_surface == 0 && record.has_view != 0) append(trailing, CUDA_RESOURCE_VIEW_DESC{});
  if (oddly(64)) trailing.resize(random_() % trailing.size());
  add_with(record, trailing);
}

}  // namespace mpsshim::fuzz
