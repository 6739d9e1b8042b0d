// SPDX-License-Identifier: Apache-2.0
// Tensor maps: the driver encodes them, because their bits are the hardware's. Addresses are values here, as in a kernel's arguments: nothing
// of them is read, and what a kernel does with the map it could do with the address.
#include <cstring>

#include "broker/executor/dispatch.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::uint32_t kMaxRank = 5;
enum Kind : std::uint32_t { kTiled = 0, kIm2col = 1, kIm2colWide = 2 };

CUresult encode(const Driver& driver, const proto::TensorMapEncodeRecord& r, CUtensorMap& map) {
  const auto type = static_cast<CUtensorMapDataType>(r.data_type);
  const auto interleave = static_cast<CUtensorMapInterleave>(r.interleave);
  const auto swizzle = static_cast<CUtensorMapSwizzle>(r.swizzle);
  const auto promotion = static_cast<CUtensorMapL2promotion>(r.l2_promotion);
  const auto fill = static_cast<CUtensorMapFloatOOBfill>(r.oob_fill);
  auto* const address = reinterpret_cast<void*>(r.address);  // NOLINT(performance-no-int-to-ptr)
  static_assert(sizeof(cuuint64_t) == sizeof r.dimension[0]);
  const auto* dimensions = reinterpret_cast<const cuuint64_t*>(r.dimension);
  const auto* strides = reinterpret_cast<const cuuint64_t*>(r.stride);
  switch (r.kind) {
    case kTiled:
      return driver->cuTensorMapEncodeTiled(&map, type, r.rank, address, dimensions, strides, r.box, r.element_stride, interleave, swizzle, promotion,
                                            fill);
    case kIm2col:
      return driver->cuTensorMapEncodeIm2col(&map, type, r.rank, address, dimensions, strides, r.lower_corner, r.upper_corner, r.channels_per_pixel,
                                             r.pixels_per_column, r.element_stride, interleave, swizzle, promotion, fill);
    case kIm2colWide:
      return driver->cuTensorMapEncodeIm2colWide(&map, type, r.rank, address, dimensions, strides, r.lower_corner[0], r.upper_corner[0],
                                                 r.channels_per_pixel, r.pixels_per_column, r.element_stride, interleave,
                                                 static_cast<CUtensorMapIm2ColWideMode>(r.wide_mode), swizzle, promotion, fill);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

void handle(Incoming& incoming, const proto::TensorMapEncodeRecord& record) {
  Session& session = incoming.session;
  // The driver reads as many entries as the rank says.
  if (record.rank > kMaxRank) return incoming.malformed("its rank is beyond the largest");
  CUtensorMap map{};
  const CUresult result = encode(session.parts().driver, record, map);
  proto::TensorMapEncodeReply reply{};
  static_assert(sizeof map == sizeof reply.map);
  std::memcpy(reply.map, &map, sizeof map);
  incoming.reply.answer_with(session.parts().faults.check(result, session.id(), "cuTensorMapEncode"), reply);
}

void handle(Incoming& incoming, const proto::TensorMapReplaceRecord& record) {
  Session& session = incoming.session;
  CUtensorMap map{};
  std::memcpy(&map, record.map, sizeof map);
  const CUresult result =
      session.parts().driver->cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(record.address));  // NOLINT(performance-no-int-to-ptr)
  proto::TensorMapReplaceReply reply{};
  std::memcpy(reply.map, &map, sizeof map);
  incoming.reply.answer_with(session.parts().faults.check(result, session.id(), "cuTensorMapReplaceAddress"), reply);
}

}  // namespace mpsshim::broker
