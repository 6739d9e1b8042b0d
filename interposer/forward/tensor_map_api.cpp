// SPDX-License-Identifier: Apache-2.0
// Tensor maps (CUDA Driver API manual, "Tensor Map Object Management"). Their bits are the hardware's and known to the driver alone, so the
// executor has them encoded; programs that encode the same map before every launch get it from here.
#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "gen/api_declarations.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

using proto::TensorMapKind;
using Question = proto::TensorMapEncodeRecord;

constexpr std::uint32_t kMinIm2colRank = 3;

using Map = std::array<std::byte, sizeof(CUtensorMap)>;

struct BytesLess {
  bool operator()(const Question& a, const Question& b) const { return std::memcmp(&a, &b, sizeof a) < 0; }
};

// What the driver has answered. The same question has the same answer for ever: of one device, whichever executor is asked.
class Answers {
 public:
  [[nodiscard]] static Answers& instance() {
    return PerSession<Answers>::get([] { return new Answers(); });
  }
  [[nodiscard]] bool find(const Question& question, Map& map) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(question);
    if (found == known_.end()) return false;
    map = found->second;
    return true;
  }
  void add(const Question& question, const Map& map) {
    const std::lock_guard lock(mutex_);
    if (known_.size() >= kMost) known_.clear();
    known_.emplace(question, map);
  }

 private:
  static constexpr std::size_t kMost = 1024;
  Mutex mutex_;
  std::map<Question, Map, BytesLess> known_ GUARDED_BY(mutex_);
};

// `map` may lie anywhere, whatever its type says: the driver writes it there.
CUresult encode(CUtensorMap* map, const Question& question) {
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  Map bytes;
  if (!Answers::instance().find(question, bytes)) {
    proto::TensorMapEncodeReply reply{};
    if (const CUresult error = session().channel().call({}, question, {}, reply); error != CUDA_SUCCESS) return error;
    static_assert(sizeof reply.map == sizeof bytes);
    std::memcpy(bytes.data(), reply.map, sizeof bytes);
    Answers::instance().add(question, bytes);
  }
  std::memcpy(static_cast<void*>(map), bytes.data(), sizeof bytes);
  return CUDA_SUCCESS;
}

// What all kinds have. CUDA_ERROR_INVALID_VALUE: what the lengths of the arrays depend on, or an array that must be there, is wrong.
struct Common {
  CUtensorMap* map;
  CUtensorMapDataType type;
  cuuint32_t rank;
  void* address;
  const cuuint64_t* dimensions;
  const cuuint64_t* strides;
  const cuuint32_t* element_strides;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
  CUtensorMapL2promotion promotion;
  CUtensorMapFloatOOBfill fill;
};

CUresult ask(const Common& common, TensorMapKind kind, std::uint32_t least_rank, Question& question) {
  if (common.map == nullptr || common.rank < least_rank || common.rank > Question::kMaxRank) return CUDA_ERROR_INVALID_VALUE;
  if (common.dimensions == nullptr || common.element_strides == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (common.strides == nullptr && common.rank > 1) return CUDA_ERROR_INVALID_VALUE;
  question.kind = kind;
  question.address = reinterpret_cast<std::uintptr_t>(common.address);
  question.data_type = static_cast<std::uint32_t>(common.type);
  question.rank = common.rank;
  question.interleave = static_cast<std::uint32_t>(common.interleave);
  question.swizzle = static_cast<std::uint32_t>(common.swizzle);
  question.l2_promotion = static_cast<std::uint32_t>(common.promotion);
  question.oob_fill = static_cast<std::uint32_t>(common.fill);
  for (std::uint32_t i = 0; i < common.rank; ++i) {
    question.dimension[i] = common.dimensions[i];
    question.element_stride[i] = common.element_strides[i];
    if (i + 1 < common.rank) question.stride[i] = common.strides[i];
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuTensorMapEncodeTiled(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank, void* globalAddress,
                                const cuuint64_t* globalDim, const cuuint64_t* globalStrides, const cuuint32_t* boxDim,
                                const cuuint32_t* elementStrides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill) {
  Question question{};
  const Common common{tensorMap,      tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
                      elementStrides, interleave,     swizzle,    l2Promotion,   oobFill};
  if (const CUresult error = ask(common, TensorMapKind::tiled, 1, question); error != CUDA_SUCCESS) return error;
  if (boxDim == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (std::uint32_t i = 0; i < tensorRank; ++i) question.box[i] = boxDim[i];
  return encode(tensorMap, question);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank, void* globalAddress,
                                 const cuuint64_t* globalDim, const cuuint64_t* globalStrides, const int* pixelBoxLowerCorner,
                                 const int* pixelBoxUpperCorner, cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
                                 const cuuint32_t* elementStrides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill) {
  Question question{};
  const Common common{tensorMap,      tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
                      elementStrides, interleave,     swizzle,    l2Promotion,   oobFill};
  if (const CUresult error = ask(common, TensorMapKind::im2col, kMinIm2colRank, question); error != CUDA_SUCCESS) return error;
  if (pixelBoxLowerCorner == nullptr || pixelBoxUpperCorner == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (std::uint32_t i = 0; i + 2 < tensorRank; ++i) {
    question.lower_corner[i] = pixelBoxLowerCorner[i];
    question.upper_corner[i] = pixelBoxUpperCorner[i];
  }
  question.channels_per_pixel = channelsPerPixel;
  question.pixels_per_column = pixelsPerColumn;
  return encode(tensorMap, question);
}

CUresult cuTensorMapEncodeIm2colWide(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank, void* globalAddress,
                                     const cuuint64_t* globalDim, const cuuint64_t* globalStrides, int pixelBoxLowerCornerWidth,
                                     int pixelBoxUpperCornerWidth, cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
                                     const cuuint32_t* elementStrides, CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill) {
  Question question{};
  const Common common{tensorMap,      tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
                      elementStrides, interleave,     swizzle,    l2Promotion,   oobFill};
  if (const CUresult error = ask(common, TensorMapKind::im2col_wide, kMinIm2colRank, question); error != CUDA_SUCCESS) return error;
  question.lower_corner[0] = pixelBoxLowerCornerWidth;
  question.upper_corner[0] = pixelBoxUpperCornerWidth;
  question.channels_per_pixel = channelsPerPixel;
  question.pixels_per_column = pixelsPerColumn;
  question.wide_mode = static_cast<std::uint32_t>(mode);
  return encode(tensorMap, question);
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* tensorMap, void* globalAddress) {
  if (tensorMap == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  proto::TensorMapReplaceRecord record{};
  record.address = reinterpret_cast<std::uintptr_t>(globalAddress);
  std::memcpy(record.map, static_cast<const void*>(tensorMap), sizeof record.map);
  proto::TensorMapReplaceReply reply{};
  const CUresult error = session().channel().call({}, record, {}, reply);
  if (error == CUDA_SUCCESS) std::memcpy(static_cast<void*>(tensorMap), reply.map, sizeof reply.map);
  return error;
}

}  // namespace mpsshim::interposer::api
