// SPDX-License-Identifier: Apache-2.0
// Kernel launches. Arguments are the client's own affair (one address space: docs/memory.md, "Checks"); their extent and the attributes are not.
#include <utility>

#include "broker/executor/base/empty_kernel.hpp"
#include "broker/executor/context/launch_cluster.hpp"
#include "broker/executor/operations/launch_attributes.hpp"
#include "broker/executor/records/dispatch.hpp"

namespace mpsshim::broker {

void handle(StreamPost& incoming, const proto::LaunchRecord& record) {
  const proto::Known<SessionFunction> function = incoming.find(incoming.session.functions(), record.function);
  if (!function) return;
  const std::uint64_t padded = (std::uint64_t{record.parameter_bytes} + 7) / 8 * 8;
  const std::uint64_t trailing = (incoming.trailing.size() + 7) / 8 * 8;  // the padding belongs to the record
  if (record.attribute_count > kMaxLaunchAttributes) return incoming.malformed("it has more attributes than exist");
  if (padded + record.attribute_count * sizeof(CUlaunchAttribute) > trailing) return incoming.malformed("its parameters or attributes exceed it");
  if (record.parameter_bytes < function->loaded->parameter_bytes) return incoming.malformed("its parameters are shorter than the function's");
  const std::byte* data = incoming.trailing.data();
  if (record.attribute_count > 0) {
    const CUresult result = check_launch_attributes(data + padded, record.attribute_count);
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
  op.is_multi_device = record.flags.has(proto::LaunchFlag::multi_device);
  op.is_cooperative = op.is_multi_device || record.flags.has(proto::LaunchFlag::cooperative);
  op.is_single = op.is_cooperative || op.function->prints || op.function->has_fixed_cluster || function->references != nullptr ||
                 op.parameter_bytes > kMostNodeParameterBytes;
  const ExecutorParts& parts = incoming.session.parts();
  if (op.attribute_count > 0 && !op.is_single && parts.has_chained_clusters)
    op.cluster = cluster_for_chain(data + padded, op.attribute_count, op.grid);
  if (const CUresult result = settle_cluster(parts, incoming.session.id(), *op.function, op.cluster); result != CUDA_SUCCESS)
    return incoming.reject(result);
  if (const CUresult result = find_bindings(incoming.session, *function, op.references); result != CUDA_SUCCESS) return incoming.reject(result);
  if (op.function->uses_device_heap) [[unlikely]]
    incoming.session.note_heap_use();
  op.data = data;
  incoming.append(std::move(op));
}

}  // namespace mpsshim::broker
