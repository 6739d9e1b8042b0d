// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/memory/checked_calls.hpp"

namespace mpsshim::broker {

namespace {

void* pointer_to(std::uint64_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

CUmemorytype type_of(const CheckedBox& box) { return box.is_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; }

// Of CUDA_MEMCPY2D and CUDA_MEMCPY3D.
template <typename Description>
Description described(const CheckedBoxCopy& copy) {
  const CheckedBox& to = copy.destination();
  const CheckedBox& from = copy.source();
  Description description{};
  description.srcMemoryType = type_of(from);
  if (from.is_host()) description.srcHost = pointer_to(from.address());
  if (!from.is_host()) description.srcDevice = from.address();
  description.srcPitch = from.pitch();
  description.dstMemoryType = type_of(to);
  if (to.is_host()) description.dstHost = pointer_to(to.address());
  if (!to.is_host()) description.dstDevice = to.address();
  description.dstPitch = to.pitch();
  description.WidthInBytes = copy.size().width;
  description.Height = copy.size().height;
  return description;
}

CUDA_MEMCPY3D described_volume(const CheckedBoxCopy& copy) {
  auto volume = described<CUDA_MEMCPY3D>(copy);
  volume.srcHeight = copy.source().rows();
  volume.dstHeight = copy.destination().rows();
  volume.Depth = copy.size().depth;
  return volume;
}

CUDA_MEMSET_NODE_PARAMS described_fill(const CheckedFill& fill) {
  CUDA_MEMSET_NODE_PARAMS params{};
  params.dst = fill.destination();
  params.pitch = fill.pitch_bytes();
  params.value = fill.value();
  params.elementSize = fill.element_bytes();
  params.width = fill.width();
  params.height = fill.height();
  return params;
}

}  // namespace

CUresult CheckedCalls::copy(const CheckedCopy& copy, CUstream stream) const {
  const CheckedRange& to = copy.destination();
  const CheckedRange& from = copy.source();
  if (from.is_host() && to.is_host()) return driver_->cuMemcpyAsync(AddressKey(), to.address(), from.address(), copy.size_bytes(), stream);
  if (from.is_host()) return driver_->cuMemcpyHtoDAsync_v2(AddressKey(), to.address(), pointer_to(from.address()), copy.size_bytes(), stream);
  if (to.is_host()) return driver_->cuMemcpyDtoHAsync_v2(AddressKey(), pointer_to(to.address()), from.address(), copy.size_bytes(), stream);
  return driver_->cuMemcpyDtoDAsync_v2(AddressKey(), to.address(), from.address(), copy.size_bytes(), stream);
}

CUresult CheckedCalls::copy(const CheckedBoxCopy& copy, CUstream stream) const {
  if (copy.size().depth == 1) {
    const auto plane = described<CUDA_MEMCPY2D>(copy);
    return driver_->cuMemcpy2DAsync_v2(AddressKey(), &plane, stream);
  }
  const CUDA_MEMCPY3D volume = described_volume(copy);
  return driver_->cuMemcpy3DAsync_v2(AddressKey(), &volume, stream);
}

CUresult CheckedCalls::copy(const CheckedArrayCopy& copy, CUstream stream) const {
  return driver_->cuMemcpy3DAsync_v2(AddressKey(), &copy.description(), stream);
}

CUresult CheckedCalls::fill(const CheckedFill& fill, CUstream stream) const {
  const bool is_flat = fill.height() == 1;
  const std::uint64_t to = fill.destination();
  switch (fill.element_bytes()) {
    case 1: {
      const auto value = static_cast<unsigned char>(fill.value());
      return is_flat ? driver_->cuMemsetD8Async(AddressKey(), to, value, fill.width(), stream)
                     : driver_->cuMemsetD2D8Async(AddressKey(), to, fill.pitch_bytes(), value, fill.width(), fill.height(), stream);
    }
    case 2: {
      const auto value = static_cast<unsigned short>(fill.value());
      return is_flat ? driver_->cuMemsetD16Async(AddressKey(), to, value, fill.width(), stream)
                     : driver_->cuMemsetD2D16Async(AddressKey(), to, fill.pitch_bytes(), value, fill.width(), fill.height(), stream);
    }
    default:
      return is_flat ? driver_->cuMemsetD32Async(AddressKey(), to, fill.value(), fill.width(), stream)
                     : driver_->cuMemsetD2D32Async(AddressKey(), to, fill.pitch_bytes(), fill.value(), fill.width(), fill.height(), stream);
  }
}

CUresult CheckedCalls::write(const CheckedWord& word, std::uint64_t value, unsigned flags, CUstream stream) const {
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.operation = word.size_bytes() == 4 ? CU_STREAM_MEM_OP_WRITE_VALUE_32 : CU_STREAM_MEM_OP_WRITE_VALUE_64;
  operation.writeValue.address = word.address();
  operation.writeValue.value64 = value;
  operation.writeValue.flags = flags;
  return driver_->cuStreamBatchMemOp_v2(AddressKey(), stream, 1, &operation, 0);
}

CUresult CheckedCalls::flush_remote_writes(CUstream stream) const {
  CUstreamBatchMemOpParams operation{};
  operation.flushRemoteWrites.operation = CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
  return driver_->cuStreamBatchMemOp_v2(AddressKey(), stream, 1, &operation, 0);
}

CUresult CheckedCalls::probe(const CheckedWord& word, const Progress& progress, std::uint32_t index, CUstream stream) const {
  return driver_->cuMemcpyAsync(AddressKey(), progress.probe_address(index), word.address(), word.size_bytes(), stream);
}

CUresult CheckedCalls::add_node(CUgraphNode& node, const NodePlace& place, const CheckedBoxCopy& copy, CUcontext context) const {
  const CUDA_MEMCPY3D params = described_volume(copy);
  return driver_->cuGraphAddMemcpyNode(AddressKey(), &node, place.graph, place.after.data(), place.after.size(), &params, context);
}

CUresult CheckedCalls::add_node(CUgraphNode& node, const NodePlace& place, const CheckedFill& fill, CUcontext context) const {
  const CUDA_MEMSET_NODE_PARAMS params = described_fill(fill);
  return driver_->cuGraphAddMemsetNode(AddressKey(), &node, place.graph, place.after.data(), place.after.size(), &params, context);
}

CUresult CheckedCalls::add_node(CUgraphNode& node, const NodePlace& place, CUDA_CONDITIONAL_NODE_PARAMS& condition) const {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional = condition;
  const CUresult result = driver_->cuGraphAddNode_v2(AddressKey(), &node, place.graph, place.after.data(), nullptr, place.after.size(), &params);
  condition = params.conditional;
  return result;
}

CUresult CheckedCalls::set_node(CUgraphExec exec, CUgraphNode node, const CheckedBoxCopy& copy, CUcontext context) const {
  const CUDA_MEMCPY3D params = described_volume(copy);
  return driver_->cuGraphExecMemcpyNodeSetParams(AddressKey(), exec, node, &params, context);
}

CUresult CheckedCalls::set_node(CUgraphExec exec, CUgraphNode node, const CheckedFill& fill, CUcontext context) const {
  const CUDA_MEMSET_NODE_PARAMS params = described_fill(fill);
  return driver_->cuGraphExecMemsetNodeSetParams(AddressKey(), exec, node, &params, context);
}

CUresult CheckedCalls::make_texture(CUtexObject& made, const CheckedResource& resource, const CUDA_TEXTURE_DESC& texture,
                                    const CUDA_RESOURCE_VIEW_DESC* view) const {
  return driver_->cuTexObjectCreate(AddressKey(), &made, &resource.description(), &texture, view);
}

CUresult CheckedCalls::make_surface(CUsurfObject& made, const CheckedResource& resource) const {
  return driver_->cuSurfObjectCreate(AddressKey(), &made, &resource.description());
}

CUresult CheckedCalls::bind(CUtexref texture, const CheckedBinding& binding) const {
  if (binding.array() != nullptr) return driver_->cuTexRefSetArray(texture, binding.array(), CU_TRSA_OVERRIDE_FORMAT);
  if (binding.mipmapped() != nullptr) return driver_->cuTexRefSetMipmappedArray(texture, binding.mipmapped(), CU_TRSA_OVERRIDE_FORMAT);
  const CheckedRange* const linear = binding.linear();
  if (linear == nullptr) return CUDA_SUCCESS;
  if (binding.rows() != nullptr) return driver_->cuTexRefSetAddress2D_v3(AddressKey(), texture, binding.rows(), linear->address(), binding.pitch());
  std::size_t offset_bytes = 0;  // the client knows it by the device's alignment
  return driver_->cuTexRefSetAddress_v2(AddressKey(), &offset_bytes, texture, linear->address(), linear->size_bytes());
}

CUresult CheckedCalls::map(CUdeviceptr& address, const CheckedExternalBuffer& buffer) const {
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC description{};
  description.offset = buffer.offset();
  description.size = buffer.size_bytes();
  return driver_->cuExternalMemoryGetMappedBuffer(AddressKey(), &address, buffer.memory()->handle(), &description);
}

CUresult CheckedCalls::map(CUmipmappedArray& made, const CheckedExternalArray& array) const {
  return driver_->cuExternalMemoryGetMappedMipmappedArray(AddressKey(), &made, array.memory()->handle(), &array.description());
}

CUresult CheckedCalls::encode(const proto::TensorMapEncodeRecord& r, CUtensorMap& map) const {
  const auto type = static_cast<CUtensorMapDataType>(r.data_type);
  const auto interleave = static_cast<CUtensorMapInterleave>(r.interleave);
  const auto swizzle = static_cast<CUtensorMapSwizzle>(r.swizzle);
  const auto promotion = static_cast<CUtensorMapL2promotion>(r.l2_promotion);
  const auto fill = static_cast<CUtensorMapFloatOOBfill>(r.oob_fill);
  void* const address = pointer_to(r.address);
  static_assert(sizeof(cuuint64_t) == sizeof r.dimension[0]);
  const auto* dimensions = reinterpret_cast<const cuuint64_t*>(r.dimension);
  const auto* strides = reinterpret_cast<const cuuint64_t*>(r.stride);
  switch (r.kind) {
    case proto::TensorMapKind::tiled:
      return driver_->cuTensorMapEncodeTiled(AddressKey(), &map, type, r.rank, address, dimensions, strides, r.box, r.element_stride, interleave,
                                             swizzle, promotion, fill);
    case proto::TensorMapKind::im2col:
      return driver_->cuTensorMapEncodeIm2col(AddressKey(), &map, type, r.rank, address, dimensions, strides, r.lower_corner, r.upper_corner,
                                              r.channels_per_pixel, r.pixels_per_column, r.element_stride, interleave, swizzle, promotion, fill);
    case proto::TensorMapKind::im2col_wide:
      return driver_->cuTensorMapEncodeIm2colWide(AddressKey(), &map, type, r.rank, address, dimensions, strides, r.lower_corner[0],
                                                  r.upper_corner[0], r.channels_per_pixel, r.pixels_per_column, r.element_stride, interleave,
                                                  static_cast<CUtensorMapIm2ColWideMode>(r.wide_mode), swizzle, promotion, fill);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult CheckedCalls::replace_address(CUtensorMap& map, std::uint64_t address) const {
  return driver_->cuTensorMapReplaceAddress(AddressKey(), &map, pointer_to(address));
}

}  // namespace mpsshim::broker
