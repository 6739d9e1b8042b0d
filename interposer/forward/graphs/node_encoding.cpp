// SPDX-License-Identifier: Apache-2.0
// A node's work as bytes, which is how the executor gets it (proto/graph_nodes.hpp), and against another node's: whether it is the same, and whether
// an executable graph may take it in its place.
#include <algorithm>
#include <cstring>
#include <utility>

#include "interposer/forward/events.hpp"
#include "interposer/forward/graphs/conditional_nodes.hpp"
#include "interposer/forward/graphs/node_work.hpp"

namespace mpsshim::interposer::forward {

namespace {

void put(std::vector<std::byte>& bytes, const void* data, std::size_t size) {
  const auto* first = static_cast<const std::byte*>(data);
  bytes.insert(bytes.end(), first, first + size);
}

void pad(std::vector<std::byte>& bytes) { bytes.resize((bytes.size() + 7) / 8 * 8); }

// Addresses, values and what is waited for may change in an executable graph; what is done, and whether a wait flushes, may not.
bool are_of_one_kind(const CUstreamBatchMemOpParams& one, const CUstreamBatchMemOpParams& other) {
  if (one.operation != other.operation) return false;
  switch (static_cast<int>(one.operation)) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: return ((one.waitValue.flags ^ other.waitValue.flags) & CU_STREAM_WAIT_VALUE_FLUSH) == 0;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64: return one.writeValue.flags == other.writeValue.flags;
    default: return std::memcmp(&one, &other, sizeof one) == 0;  // a barrier, a flush
  }
}

std::vector<std::byte> payload_of(const KernelWork& kernel) {
  std::vector<std::byte> bytes;
  proto::LaunchRecord record = kernel.launch;
  record.attribute_count = static_cast<std::uint32_t>(kernel.attributes.size());
  const bool is_green = kernel.green != proto::GreenContextId{};
  record.flags.set(proto::LaunchFlag::of_green_context, is_green);
  put(bytes, &record, proto::LaunchRecord::kBodyBytes);
  put(bytes, kernel.parameters.data(), kernel.parameters.size());
  put(bytes, kernel.attributes.data(), kernel.attributes.size() * sizeof(CUlaunchAttribute));
  if (is_green) put(bytes, &kernel.green, sizeof kernel.green);
  return bytes;
}

std::vector<std::byte> payload_of(const FillWork& fill) {
  const CUDA_MEMSET_NODE_PARAMS& p = fill.params;
  const proto::FillRecord record{p.dst, p.pitch, p.width, p.height, p.value, p.elementSize};
  std::vector<std::byte> bytes;
  put(bytes, &record, proto::FillRecord::kBodyBytes);
  return bytes;
}

}  // namespace

CUgraphExecUpdateResult can_become(const NodeWork& before, const NodeWork& after) {
  if (before.index() != after.index()) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
  const bool is_memory = std::holds_alternative<AllocationWork>(before) || std::holds_alternative<FreeWork>(before);
  if (is_memory) return are_same(before, after) ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
  if (const auto* kernel = std::get_if<KernelWork>(&before)) {
    const auto& next = std::get<KernelWork>(after);
    const auto bytes_of = [](const KernelWork& work) { return work.attributes.size() * sizeof(CUlaunchAttribute); };
    const bool same = kernel->launch.flags == next.launch.flags && bytes_of(*kernel) == bytes_of(next) &&
                      (next.attributes.empty() || std::memcmp(kernel->attributes.data(), next.attributes.data(), bytes_of(next)) == 0);
    if (!same) return CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
    if (kernel->green != next.green) return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
  } else if (const auto* copy = std::get_if<CopyWork>(&before)) {
    const auto& next = std::get<CopyWork>(after);
    const bool same_memory = copy->copy.destination_space == next.copy.destination_space && copy->copy.source_space == next.copy.source_space;
    if (!same_memory || !copy->is_linear() || !next.is_linear()) return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
  } else if (const auto* fill = std::get_if<FillWork>(&before)) {
    // Since CUDA 12 the driver takes other rows as well, as long as neither is two-dimensional.
    const auto& next = std::get<FillWork>(after).params;
    if (fill->params.height != 1 || next.height != 1) {
      const bool same_shape = fill->params.height == next.height && fill->params.width == next.width && fill->params.elementSize == next.elementSize;
      if (!same_shape) return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
  } else if (std::holds_alternative<ConditionWork>(before)) {
    return are_same(before, after) ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
  } else if (const auto* memory = std::get_if<MemoryOperationsWork>(&before)) {
    const auto& next = std::get<MemoryOperationsWork>(after);
    const bool same = memory->context == next.context && std::equal(memory->operations.begin(), memory->operations.end(), next.operations.begin(),
                                                                    next.operations.end(), are_of_one_kind);
    if (!same) return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
  }
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

bool are_same(const NodeWork& one, const NodeWork& other) {
  if (one.index() != other.index()) return false;
  if (const auto* host = std::get_if<HostWork>(&one)) {
    const auto& params = std::get<HostWork>(other).params;
    return host->params.fn == params.fn && host->params.userData == params.userData;
  }
  if (const auto* memory = std::get_if<MemoryOperationsWork>(&one)) {
    const auto& operations = std::get<MemoryOperationsWork>(other).operations;
    return memory->operations.size() == operations.size() &&
           std::memcmp(memory->operations.data(), operations.data(), operations.size() * sizeof(CUstreamBatchMemOpParams)) == 0;
  }
  if (const auto* allocation = std::get_if<AllocationWork>(&one)) return allocation->block == std::get<AllocationWork>(other).block;
  if (const auto* free = std::get_if<FreeWork>(&one)) return free->block == std::get<FreeWork>(other).block;
  if (const auto* wait = std::get_if<EventWaitWork>(&one)) return wait->event == std::get<EventWaitWork>(other).event;
  std::vector<std::byte> first, second;
  encode(one, 0, true, {}, first);
  encode(other, 0, true, {}, second);
  return first == second;
}

void encode(const NodeWork& work, std::uint32_t index, bool is_enabled, std::span<const std::uint32_t> dependencies, std::vector<std::byte>& bytes) {
  proto::GraphNodeHeader header;
  std::vector<std::byte> payload;
  if (const auto* kernel = std::get_if<KernelWork>(&work)) {
    header.kind = proto::GraphNodeKind::kernel;
    payload = payload_of(*kernel);
  } else if (const auto* copy = std::get_if<CopyWork>(&work)) {
    header.kind = proto::GraphNodeKind::copy;
    put(payload, &copy->copy, sizeof copy->copy);
  } else if (const auto* fill = std::get_if<FillWork>(&work)) {
    header.kind = proto::GraphNodeKind::fill;
    payload = payload_of(*fill);
  } else if (const auto* record = std::get_if<EventRecordWork>(&work)) {
    header.kind = proto::GraphNodeKind::event_record;
    const proto::EventId event = id_of<proto::HandleKind::event>(record->event);
    put(payload, &event, sizeof event);
  } else if (const auto* condition = std::get_if<ConditionWork>(&work)) {
    header.kind = proto::GraphNodeKind::conditional;
    payload = payload_of(*condition);
  }
  header.index = index;
  header.is_enabled = is_enabled ? 1 : 0;
  header.dependency_count = static_cast<std::uint32_t>(dependencies.size());
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  put(bytes, &header, sizeof header);
  put(bytes, dependencies.data(), dependencies.size_bytes());
  pad(bytes);
  put(bytes, payload.data(), payload.size());
  pad(bytes);
}

}  // namespace mpsshim::interposer::forward
