// SPDX-License-Identifier: Apache-2.0
// Kernel launches. Arguments are the client's own affair (one address space, docs/architecture.md); their extent and the attributes are not.
#include <utility>

#include "broker/executor/dispatch.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::uint32_t kCooperative = 1u << 0;
constexpr std::uint32_t kMaxAttributes = 32;

// Only attributes that are values, or whose pointers can be checked, reach the driver: an event or a device-side node in one would be an
// address of the client's choosing.
CUresult check_attribute(Session& session, const CUlaunchAttribute& attribute) {
  switch (static_cast<int>(attribute.id)) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case 11:  // CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, since 12.8
    case 14:  // CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, since 12.5
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: {
      const CUaccessPolicyWindow& window = attribute.value.accessPolicyWindow;
      const auto address = reinterpret_cast<std::uint64_t>(window.base_ptr);
      return window.num_bytes == 0 || session.memory().owns_device(address, window.num_bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult check_attributes(Session& session, const std::byte* attributes, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    CUlaunchAttribute attribute;
    std::memcpy(&attribute, attributes + i * sizeof attribute, sizeof attribute);
    const CUresult result = check_attribute(session, attribute);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

void handle(Incoming& incoming, const proto::LaunchRecord& record) {
  StreamQueue* queue = incoming.stream();
  if (queue == nullptr) return;
  const proto::Known<SessionFunction> function = incoming.find(incoming.session.functions(), record.function);
  if (!function) return;
  const std::uint64_t padded = (std::uint64_t{record.parameter_bytes} + 7) / 8 * 8;
  const std::uint64_t trailing = (incoming.trailing.size() + 7) / 8 * 8;  // the padding belongs to the record
  if (record.attribute_count > kMaxAttributes) return incoming.malformed("it has more attributes than exist");
  if (padded + record.attribute_count * sizeof(CUlaunchAttribute) > trailing) return incoming.malformed("its parameters or attributes exceed it");
  if (record.parameter_bytes < function->loaded->parameter_bytes) return incoming.malformed("its parameters are shorter than the function's");
  const std::byte* data = incoming.trailing.data();
  if (record.attribute_count > 0) {
    const CUresult result = check_attributes(incoming.session, data + padded, record.attribute_count);
    if (result != CUDA_SUCCESS) return incoming.reject(result);
  }
  LaunchOp op;
  op.function = function->loaded;
  op.grid[0] = record.grid_x;
  op.grid[1] = record.grid_y;
  op.grid[2] = record.grid_z;
  op.block[0] = record.block_x;
  op.block[1] = record.block_y;
  op.block[2] = record.block_z;
  op.shared_bytes = record.shared_bytes;
  op.parameter_bytes = static_cast<std::uint32_t>(padded);
  op.attribute_count = record.attribute_count;
  op.is_cooperative = (record.flags & kCooperative) != 0;
  op.data = data;
  incoming.session.streams().append(*queue, std::move(op));
}

}  // namespace mpsshim::broker
