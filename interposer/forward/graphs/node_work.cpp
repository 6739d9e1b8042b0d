// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/graphs/node_work.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "interposer/forward/events.hpp"
#include "interposer/forward/graphs/conditional_nodes.hpp"
#include "interposer/forward/green_contexts.hpp"
#include "interposer/forward/launch.hpp"
#include "interposer/forward/memory/copy.hpp"
#include "interposer/forward/stream_memory_ops.hpp"

namespace mpsshim::interposer::forward {

namespace {

template <typename Work>
WorkRef share(Work work) {
  return std::make_shared<const NodeWork>(std::move(work));
}

// The copy is in its place: from now on its parameters have their addresses.
WorkRef share_kernel(KernelWork kernel, const Function& function) {
  auto work = std::make_shared<NodeWork>(std::move(kernel));
  auto& placed = std::get<KernelWork>(*work);
  placed.addresses.clear();
  for (const Parameter& parameter : function.layout) placed.addresses.push_back(placed.parameters.data() + parameter.offset);
  return work;
}

void put(std::vector<std::byte>& bytes, const void* data, std::size_t size) {
  const auto* first = static_cast<const std::byte*>(data);
  bytes.insert(bytes.end(), first, first + size);
}

void pad(std::vector<std::byte>& bytes) { bytes.resize((bytes.size() + 7) / 8 * 8); }

// Only these mean something in a node; others belong to a launch in a stream.
bool is_node_attribute(CUlaunchAttributeID id) {
  switch (static_cast<int>(id)) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case 11:  // CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, since 12.8
    case 14:  // CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, since 12.5
      return true;
    default: return false;
  }
}

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

void set_attribute(KernelWork& kernel, const CUlaunchAttribute& attribute) {
  if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
    kernel.launch.flags.set(proto::LaunchFlag::cooperative, attribute.value.cooperative != 0);
    return;
  }
  const auto is_it = [&](const CUlaunchAttribute& known) { return known.id == attribute.id; };
  const auto found = std::find_if(kernel.attributes.begin(), kernel.attributes.end(), is_it);
  if (found != kernel.attributes.end())
    *found = attribute;
  else
    kernel.attributes.push_back(attribute);
}

}  // namespace

CUgraphNodeType type_of(const NodeWork& work) {
  struct Types {
    CUgraphNodeType operator()(const EmptyWork&) const { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUgraphNodeType operator()(const KernelWork&) const { return CU_GRAPH_NODE_TYPE_KERNEL; }
    CUgraphNodeType operator()(const CopyWork&) const { return CU_GRAPH_NODE_TYPE_MEMCPY; }
    CUgraphNodeType operator()(const FillWork&) const { return CU_GRAPH_NODE_TYPE_MEMSET; }
    CUgraphNodeType operator()(const ChildWork&) const { return CU_GRAPH_NODE_TYPE_GRAPH; }
    CUgraphNodeType operator()(const EventRecordWork&) const { return CU_GRAPH_NODE_TYPE_EVENT_RECORD; }
    CUgraphNodeType operator()(const EventWaitWork&) const { return CU_GRAPH_NODE_TYPE_WAIT_EVENT; }
    CUgraphNodeType operator()(const HostWork&) const { return CU_GRAPH_NODE_TYPE_HOST; }
    CUgraphNodeType operator()(const MemoryOperationsWork&) const { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
    CUgraphNodeType operator()(const AllocationWork&) const { return CU_GRAPH_NODE_TYPE_MEM_ALLOC; }
    CUgraphNodeType operator()(const FreeWork&) const { return CU_GRAPH_NODE_TYPE_MEM_FREE; }
    CUgraphNodeType operator()(const ConditionWork&) const { return CU_GRAPH_NODE_TYPE_CONDITIONAL; }
  };
  return std::visit(Types{}, work);
}

CUresult make_kernel_work(const CUDA_KERNEL_NODE_PARAMS_v3& params, WorkRef& work) {
  KernelWork kernel;
  kernel.function = params.func;
  kernel.kernel = params.func == nullptr ? params.kern : nullptr;
  kernel.context = params.ctx;
  if (const GreenObject* green = GreenContexts::instance().current()) kernel.green = green->id;
  const CUfunction handle = params.func != nullptr ? params.func : reinterpret_cast<CUfunction>(params.kern);
  const Function* function = handle != nullptr ? Functions::instance().resolve(handle) : nullptr;
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const LaunchShape shape{params.gridDimX,  params.gridDimY,  params.gridDimZ,      params.blockDimX,
                          params.blockDimY, params.blockDimZ, params.sharedMemBytes};
  const CUresult refused = check_launch(shape, launch_limits(), function->max_threads_per_block.load(std::memory_order_relaxed),
                                        function->max_dynamic_shared_bytes.load(std::memory_order_relaxed));
  if (refused != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  Arguments arguments;
  if (const CUresult error = find_arguments(params.kernelParams, params.extra, function->parameter_bytes, arguments); error != CUDA_SUCCESS) {
    return error;
  }
  kernel.launch = {function->id,
                   shape.grid_x,
                   shape.grid_y,
                   shape.grid_z,
                   shape.block_x,
                   shape.block_y,
                   shape.block_z,
                   shape.shared_bytes,
                   function->parameter_bytes,
                   0,
                   {}};
  kernel.parameters.resize((function->parameter_bytes + 7u) / 8 * 8);
  copy_arguments(arguments, function->layout, function->parameter_bytes, kernel.parameters.data());
  work = share_kernel(std::move(kernel), *function);
  return CUDA_SUCCESS;
}

CUresult make_kernel_work(const Stream& stream, const proto::LaunchRecord& record, std::span<const std::byte> trailing, WorkRef& work) {
  KernelWork kernel;
  kernel.green = stream.green;
  kernel.function = to_handle<CUfunction>(record.function);
  const Function* function = Functions::instance().resolve(kernel.function);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  kernel.launch = record;
  kernel.launch.attribute_count = 0;
  const std::size_t parameter_room = (record.parameter_bytes + 7u) / 8 * 8;
  kernel.parameters.assign(trailing.begin(), trailing.begin() + static_cast<std::ptrdiff_t>(parameter_room));
  for (std::uint32_t i = 0; i < record.attribute_count; ++i) {
    CUlaunchAttribute attribute;
    std::memcpy(&attribute, trailing.data() + parameter_room + i * sizeof attribute, sizeof attribute);
    // A launch that may begin early begins behind what is before it: a whole dependency, where the driver has a programmatic one.
    if (is_node_attribute(attribute.id)) set_attribute(kernel, attribute);
  }
  work = share_kernel(std::move(kernel), *function);
  return CUDA_SUCCESS;
}

CUresult make_fill_work(const CUDA_MEMSET_NODE_PARAMS& params, CUcontext context, WorkRef& work) {
  if (params.elementSize != 1 && params.elementSize != 2 && params.elementSize != 4) return CUDA_ERROR_INVALID_VALUE;
  if (params.width == 0 || params.height == 0 || params.dst % params.elementSize != 0) return CUDA_ERROR_INVALID_VALUE;
  if (params.height > 1 && params.pitch % params.elementSize != 0) return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t row = 0, bytes = 0;
  if (__builtin_mul_overflow(params.width, std::size_t{params.elementSize}, &row)) return CUDA_ERROR_INVALID_VALUE;
  if (!proto::box_extent(row, params.height, 1, params.pitch, 0, bytes)) return CUDA_ERROR_INVALID_VALUE;
  Space space{};
  if (const CUresult error = classify_fixed(params.dst, bytes, Named::device, space); error != CUDA_SUCCESS) return error;
  work = share(FillWork{params, context});
  return CUDA_SUCCESS;
}

WorkRef make_fill_work(const proto::FillRecord& record) {
  CUDA_MEMSET_NODE_PARAMS params{};
  params.dst = record.destination;
  params.pitch = record.pitch_bytes;
  params.value = record.value;
  params.elementSize = record.element_bytes;
  params.width = record.width;
  params.height = record.height;
  return share(FillWork{params, nullptr});
}

CUresult make_host_work(const CUDA_HOST_NODE_PARAMS& params, WorkRef& work) {
  if (params.fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  work = share(HostWork{params});
  return CUDA_SUCCESS;
}

CUresult make_event_work(CUevent event, bool is_wait, WorkRef& work) {
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Event* found = Events::instance().resolve(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (found->shared) return CUDA_ERROR_NOT_SUPPORTED;  // it has no place among a graph's driver events
  work = is_wait ? share(EventWaitWork{event}) : share(EventRecordWork{event});
  return CUDA_SUCCESS;
}

CUresult make_memory_operations_work(const CUDA_BATCH_MEM_OP_NODE_PARAMS& params, WorkRef& work) {
  if (params.flags != 0 || params.count == 0 || params.count > kMostMemoryOperations || params.paramArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::span<const CUstreamBatchMemOpParams> operations(params.paramArray, params.count);
  if (const CUresult error = check_memory_operations(operations); error != CUDA_SUCCESS) return error;
  work = share(MemoryOperationsWork{params.ctx, {operations.begin(), operations.end()}});
  return CUDA_SUCCESS;
}

WorkRef make_memory_operations_work(std::span<const CUstreamBatchMemOpParams> checked) {
  return share(MemoryOperationsWork{owning_context(), {checked.begin(), checked.end()}});
}

CUresult make_work(const CUgraphNodeParams& params, WorkRef& work, CUgraph& child) {
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return make_kernel_work(params.kernel, work);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return make_copy_work(params.memcpy.copyParams, params.memcpy.copyCtx, work);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2& fill = params.memset;
      return make_fill_work({fill.dst, fill.pitch, fill.value, fill.elementSize, fill.width, fill.height}, fill.ctx, work);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      child = params.graph.graph;
      work = share(ChildWork{});
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EMPTY: work = share(EmptyWork{}); return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return make_event_work(params.eventWait.event, true, work);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return make_event_work(params.eventRecord.event, false, work);
    case CU_GRAPH_NODE_TYPE_HOST: return make_host_work({params.host.fn, params.host.userData}, work);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return make_memory_operations_work({params.memOp.ctx, params.memOp.count, params.memOp.paramArray, params.memOp.flags}, work);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

WorkRef with_attribute(const KernelWork& kernel, const CUlaunchAttribute& attribute) {
  const Function* function = Functions::instance().resolve(to_handle<CUfunction>(kernel.launch.function));
  if (!is_node_attribute(attribute.id) || function == nullptr) return nullptr;
  KernelWork changed = kernel;
  set_attribute(changed, attribute);
  return share_kernel(std::move(changed), *function);
}

WorkRef with_attributes_of(const KernelWork& kernel, const KernelWork& from) {
  const Function* function = Functions::instance().resolve(to_handle<CUfunction>(kernel.launch.function));
  if (function == nullptr) return nullptr;
  KernelWork changed = kernel;
  changed.attributes = from.attributes;
  changed.launch.flags = from.launch.flags;
  changed.green = from.green;
  return share_kernel(std::move(changed), *function);
}

CUlaunchAttributeValue attribute_of(const KernelWork& kernel, CUlaunchAttributeID id) {
  CUlaunchAttributeValue value{};
  if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) value.cooperative = kernel.launch.flags.has(proto::LaunchFlag::cooperative) ? 1 : 0;
  for (const CUlaunchAttribute& attribute : kernel.attributes) {
    if (attribute.id == id) value = attribute.value;
  }
  return value;
}

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

namespace {

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
